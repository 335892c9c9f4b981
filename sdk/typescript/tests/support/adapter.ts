/** Another process that holds leases: the adapter of the conformance suite. */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

/** The answer to a call. */
// biome-ignore lint/suspicious/noExplicitAny: each operation has fields of its own.
type Answer = any;

export class Adapter implements AsyncDisposable {
  readonly child: ChildProcessWithoutNullStreams;
  /** Its events, as `lost`. */
  readonly events: Answer[] = [];
  readonly #answers = new Map<number, (answer: Answer) => void>();
  #last = 0;
  stderr = "";

  constructor(env: Record<string, string> = {}) {
    const program = fileURLToPath(new URL("../../conformance-adapter.js", import.meta.url));
    this.child = spawn(process.execPath, [program], { env: { ...process.env, ...env } });
    this.child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.stderr += text;
    });
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      const answer = JSON.parse(line);
      if (answer.event !== undefined) {
        this.events.push(answer);
      }
      this.#answers.get(answer.id)?.(answer);
      this.#answers.delete(answer.id);
    });
  }

  /** Sends a call, and returns its whole answer. */
  call(op: string, fields: object = {}): Promise<Answer> {
    this.#last += 1;
    const id = this.#last;
    this.child.stdin.write(`${JSON.stringify({ id, op, ...fields })}\n`);
    return new Promise((resolve) => this.#answers.set(id, resolve));
  }

  /** Sends a call that has to succeed. */
  async ok(op: string, fields: object = {}): Promise<Answer> {
    const { ok, error } = await this.call(op, fields);
    if (ok === undefined) {
      throw new Error(`${op}: ${JSON.stringify(error)}`);
    }
    return ok;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.child.kill("SIGKILL");
      await once(this.child, "exit");
    }
  }
}
