/** A real PostgreSQL, from the system's packages. It refuses to run as root, so as root it runs as the user `nobody`. */
import { execFileSync } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { Program } from "./program.js";
import { until } from "./until.js";

const NOBODY = 65_534;
const LIBRARY = "/usr/lib/postgresql";

export class Postgres implements AsyncDisposable {
  readonly pool: pg.Pool;
  /** Where it is, for programs. */
  readonly environment: Record<string, string>;
  readonly #dir: string;
  readonly #program: Program;

  private constructor(host: string, dir: string, program: Program) {
    this.pool = new pg.Pool({ host, port: 5432, user: "postgres", database: "postgres" });
    this.pool.on("error", () => {});
    const url = `postgresql://postgres@${host}:5432/postgres`;
    this.environment = { PGHOST: host, PGPORT: "5432", PGUSER: "postgres", PGDATABASE: "postgres", DATABASE_URL: url };
    this.#dir = dir;
    this.#program = program;
  }

  static async start(): Promise<Postgres> {
    const dir = mkdtempSync(join(tmpdir(), "ringfence-ts-"));
    const isRoot = process.getuid?.() === 0;
    if (isRoot) {
      chownSync(dir, NOBODY, NOBODY);
    }
    const options = { cwd: dir, ...(isRoot ? { uid: NOBODY, gid: NOBODY } : {}) };
    const data = join(dir, "data");
    const initdb = ["-D", data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"];
    execFileSync(installed("initdb"), initdb, { ...options, stdio: "ignore" });
    const byte = () => 1 + Math.floor(Math.random() * 250);
    const host = `127.${byte()}.${byte()}.${byte()}`;
    const command = [
      installed("postgres"),
      "-D",
      data,
      "-h",
      host,
      "-p",
      "5432",
      "-c",
      "unix_socket_directories=",
      "-c",
      "fsync=off",
    ] as const;
    const program = new Program(command, join(dir, "log"), options);
    program.start();
    const postgres = new Postgres(host, dir, program);
    await until("PostgreSQL is ready", () =>
      postgres.pool.query("SELECT 1").then(
        () => true,
        () => false,
      ),
    );
    return postgres;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.pool.end();
    await this.#program.kill("SIGINT");
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

function installed(name: string): string {
  const versions = existsSync(LIBRARY) ? readdirSync(LIBRARY) : [];
  const found = versions.map((version) => join(LIBRARY, version, "bin", name)).find((path) => existsSync(path));
  return found ?? name;
}
