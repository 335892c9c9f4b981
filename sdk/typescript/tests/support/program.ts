/** Processes that end with the test program. */
import { type ChildProcess, execFileSync, type SpawnOptions, spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";

const running = new Set<ChildProcess>();
process.on("exit", () => {
  for (const child of running) {
    child.kill("SIGKILL");
  }
});

/** The program under test. */
export function ringfence(): string {
  return process.env.RINGFENCE_UNDER_TEST ?? "ringfence";
}

/** Runs it to its end, and returns what it printed. */
export function runs(program: string, args: readonly string[], cwd?: string): string {
  return execFileSync(program, args, {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    ...(cwd === undefined ? {} : { cwd }),
  });
}

/** A process whose output goes to a file. */
export class Program {
  readonly #command: readonly [string, ...string[]];
  readonly #log: string;
  readonly #options: SpawnOptions;
  #child: ChildProcess | undefined;

  constructor(command: readonly [string, ...string[]], log: string, options: SpawnOptions = {}) {
    this.#command = command;
    this.#log = log;
    this.#options = options;
  }

  get isRunning(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  start(): void {
    const log = openSync(this.#log, "a");
    const [file, ...args] = this.#command;
    const child = spawn(file, args, { ...this.#options, stdio: ["ignore", log, log] });
    closeSync(log);
    this.#child = child;
    running.add(child);
    child.once("exit", () => running.delete(child));
    child.once("error", () => running.delete(child));
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#child;
    if (child === undefined || !this.isRunning) {
      return;
    }
    await new Promise((resolve) => {
      child.once("exit", resolve);
      child.kill(signal);
    });
  }
}
