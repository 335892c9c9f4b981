/** Clusters of real nodes. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client, type ClientOptions } from "../../src/index.js";
import { Program, ringfence } from "./program.js";
import { until } from "./until.js";

/** One node of a cluster. */
export interface Node {
  readonly id: number;
  readonly url: string;
  readonly program: Program;
}

export class Cluster implements AsyncDisposable {
  readonly nodes: readonly Node[];
  readonly dir = mkdtempSync(join(tmpdir(), "ringfence-ts-"));

  /** `arguments_` are of `ringfence serve`, for each node; `scheme` is that of the URLs. */
  constructor(size = 3, arguments_: (id: number) => readonly string[] = () => [], scheme = "http") {
    // An address of its own: ports that another program has do not matter.
    const byte = () => 1 + Math.floor(Math.random() * 250);
    const ip = `127.${byte()}.${byte()}.${byte()}`;
    const ids = Array.from({ length: size }, (_, index) => index + 1);
    const peers = ids.map((id) => `${id}=${ip}:${7500 + id}`).join();
    this.nodes = ids.map((id) => {
      const http = `${ip}:${7400 + id}`;
      const own = [
        "--id",
        `${id}`,
        "--data",
        join(this.dir, `data-${id}`),
        "--http",
        http,
        "--peer",
        `${ip}:${7500 + id}`,
      ];
      const command = [ringfence(), "serve", ...own, "--peers", peers, ...arguments_(id)] as const;
      return { id, url: `${scheme}://${http}`, program: new Program(command, join(this.dir, `node-${id}.log`)) };
    });
  }

  /** Starts nodes, and waits until the client's calls succeed. */
  static async start(size = 3): Promise<Cluster> {
    const cluster = new Cluster(size);
    await cluster.startAll();
    return cluster;
  }

  async startAll(): Promise<void> {
    for (const { program } of this.nodes) {
      program.start();
    }
    await until(`a leader; see ${this.dir}`, () => this.leader());
  }

  get urls(): string[] {
    return this.nodes.map(({ url }) => url);
  }

  client(options: Partial<ClientOptions> = {}): Client {
    return new Client({ urls: this.urls, ...options });
  }

  /** The node that a live node names as the leader. */
  async leader(): Promise<Node | undefined> {
    for (const node of this.nodes.filter(({ program }) => program.isRunning)) {
      const status = await json(`${node.url}/v1/cluster`).catch(() => undefined);
      const leader = this.nodes.find(({ id, program }) => id === status?.leader && program.isRunning);
      if (leader !== undefined && status?.role !== "candidate") {
        return leader;
      }
    }
    return undefined;
  }

  /** How many holders and waiters a key has. */
  async key(key: string): Promise<{ holders: number; waiters: number }> {
    const view = await json(`${this.urls[0]}/v1/keys/${key}`);
    const count = (list: unknown) => (Array.isArray(list) ? list.length : 0);
    return { holders: count(view.holders), waiters: count(view.waiters) };
  }

  /** The sum of a counter of all nodes, over all its labels that contain `label`. */
  async metric(name: string, label: string): Promise<number> {
    const texts = await Promise.all(this.urls.map(async (url) => (await fetch(`${url}/metrics`)).text()));
    const lines = texts
      .flatMap((text) => text.split("\n"))
      .filter((line) => line.startsWith(name) && line.includes(label));
    return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
  }

  log(id: number): string {
    return readFileSync(join(this.dir, `node-${id}.log`), "utf8");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.nodes.map(({ program }) => program.kill()));
    rmSync(this.dir, { recursive: true, force: true });
  }
}

async function json(url: string): Promise<Record<string, unknown>> {
  const response = await fetch(url, { signal: AbortSignal.timeout(2_000) });
  return (await response.json()) as Record<string, unknown>;
}
