/** A real Redis, from the system's packages. */
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Program } from "./program.js";
import { until } from "./until.js";

export class Redis implements AsyncDisposable {
  readonly host: string;
  readonly port = 6_379;
  readonly #dir = mkdtempSync(join(tmpdir(), "ringfence-ts-"));
  readonly #program: Program;

  private constructor() {
    const byte = () => 1 + Math.floor(Math.random() * 250);
    this.host = `127.${byte()}.${byte()}.${byte()}`;
    const options = ["--bind", this.host, "--port", `${this.port}`, "--save", "", "--appendonly", "no"];
    this.#program = new Program(["redis-server", ...options, "--dir", this.#dir], join(this.#dir, "log"));
  }

  static async start(): Promise<Redis> {
    const redis = new Redis();
    redis.#program.start();
    const answers = () =>
      new Promise<boolean>((resolve) => {
        const socket = connect(redis.port, redis.host, () => socket.end(() => resolve(true)));
        socket.once("error", () => resolve(false));
      });
    await until("Redis is ready", answers);
    return redis;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program.kill();
    rmSync(this.#dir, { recursive: true, force: true });
  }
}
