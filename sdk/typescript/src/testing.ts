/**
 * A cluster in the memory of this process, for tests of programs that use the client: no other program is needed.
 *
 * ```ts
 * test("two never work at once", async (t) => {
 *   const { client, cluster } = await fakeRingfence(t);
 *   const lease = await client.acquire("a");
 *   cluster.advance(20_000);
 *   assert.equal(lease.state, "lost");
 * });
 * ```
 *
 * It answers on a port of the loopback interface as a node does, so the whole client runs, with all that it does in an outage. Not in it: rights,
 * limits of rate, watches, and the administration of a cluster.
 */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Client } from "./client.js";
import { systemClock } from "./clock.js";
import { problem, type Result } from "./fake-answers.js";
import { FakeTable, type Request, type Wanted } from "./fake-table.js";
import type { ClientOptions } from "./options.js";
import { LONGEST_MS } from "./timers.js";

/** A lease that holds a key. */
export interface FakeHolder {
  readonly token: number;
  readonly holder: string | null;
  readonly mode: "exclusive" | "shared";
  /** How long the cluster keeps it unless it is renewed. */
  readonly expiresInMs: number;
  readonly metadata: Readonly<Record<string, string>>;
}

const KEYS = "/v1/keys/";
const LEASES = "/v1/leases/";
/** What it says of itself. */
const STATUS = {
  ...{ node_id: 1, role: "leader", term: 1, leader: 1, members: {}, version: "fake" },
  ...{ last_log_index: null, committed_index: null, applied_index: null, mirror: null },
};

/** A cluster of one node, in memory. */
export class FakeCluster implements AsyncDisposable {
  readonly #table = new FakeTable();
  readonly #server: Server;
  readonly #id = randomUUID();
  readonly #clients: Client[] = [];
  /** What looks at the clock after it has jumped. */
  readonly #looks: (() => void)[] = [];
  #jumpedMs = 0;
  #away: "refuses" | "silent" | undefined;
  #timer: NodeJS.Timeout | undefined;

  private constructor() {
    this.#server = createServer((request, response) => void this.#serve(request, response));
    // The connections of a client do not end by themselves, and keep no process alive.
    Object.assign(this.#server, { keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0 });
    this.#server.on("connection", (socket) => socket.unref());
  }

  /** Starts one, on a port that is free or on this one. */
  static async start({ port = 0, host = "127.0.0.1" }: { port?: number; host?: string } = {}): Promise<FakeCluster> {
    const cluster = new FakeCluster();
    cluster.#server.listen(port, host);
    await once(cluster.#server, "listening");
    cluster.#server.unref();
    return cluster;
  }

  /** Where it answers. A client that is made with this alone does not see `advance`. */
  get url(): string {
    const { address, port } = this.#server.address() as AddressInfo;
    return `http://${address}:${port}`;
  }

  /** A client on the clock of the cluster. It is closed with the cluster. */
  client(options: Omit<ClientOptions, "urls" | "clock"> = {}): Client {
    const clock = {
      monotonic: () => systemClock.monotonic() + this.#jumpedMs,
      uptime: () => systemClock.uptime() + this.#jumpedMs,
      onJump: (look: () => void) => void this.#looks.push(look),
    };
    const client = new Client({ ...options, urls: [this.url], clock });
    this.#clients.push(client);
    return client;
  }

  /** Who holds a key, the oldest first. */
  holders(key: string): readonly FakeHolder[] {
    this.#run();
    const { holders } = this.#table.key(key);
    return holders.map(({ token, holder, mode, metadata, expires_in_ms }) => ({
      token,
      holder,
      mode,
      metadata,
      expiresInMs: expires_in_ms,
    }));
  }

  /** How many wait for a key. */
  waiters(key: string): number {
    this.#run();
    return this.#table.key(key).waiters.length;
  }

  /** Ends the leases that hold a key, as an operator does. Their holders learn of it with their next renewals, after a third of their time. */
  revoke(key: string): void {
    this.#endAll(key, "revoked");
  }

  /** Ends the leases that hold a key as if their time was over here, and not yet there. Their holders learn of it with their next renewals. */
  expire(key: string): void {
    this.#endAll(key, "expired");
  }

  /**
   * Moves the time of leases, in the cluster and in its clients, as if this process had stood still for so many milliseconds. `wait`, `timeout`
   * and the time of repeats are not moved: a place in the queue may be lost, but its client goes on for as long as it would have.
   */
  advance(ms: number): void {
    this.#jumpedMs += ms;
    this.#run();
    for (const look of this.#looks) {
      look();
    }
  }

  /** From now on nothing is done: it refuses, as a cluster without a leader does, or it is silent, as one whose network has failed. */
  away(how: "refuses" | "silent" = "refuses"): void {
    this.#away = how;
    if (how === "refuses") {
      this.#table.letGo();
    }
  }

  /** It is there again, with all leases that have not ended meanwhile. */
  back(): void {
    this.#away = undefined;
  }

  /** Ends it, and the clients that it made. */
  async close(): Promise<void> {
    await Promise.all(this.#clients.map((client) => client.close({ within: this.#away === undefined ? 5_000 : 0 })));
    clearTimeout(this.#timer);
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  get #isSilent(): boolean {
    return this.#away === "silent";
  }

  #endAll(key: string, end: "revoked" | "expired"): void {
    for (const { token } of this.holders(key)) {
      this.#table.end(key, token, end);
    }
    this.#run();
  }

  /** Does what is due, and comes back when more is. */
  #run(): void {
    const nowMs = performance.now() + this.#jumpedMs;
    this.#table.run(nowMs);
    clearTimeout(this.#timer);
    const dueMs = this.#table.nextDueMs - nowMs;
    if (dueMs < LONGEST_MS) {
      this.#timer = setTimeout(() => this.#run(), Math.max(dueMs, 1)).unref();
    }
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) {
        chunks.push(chunk as Buffer);
      }
    } catch {
      // The client has hung up.
      return;
    }
    if (this.#isSilent) {
      return;
    }
    const { method = "", url = "" } = request;
    let result: Result;
    try {
      const text = Buffer.concat(chunks).toString("utf8");
      // biome-ignore lint/suspicious/noExplicitAny: the client has checked it.
      result = await this.#answer(method, url, text === "" ? {} : (JSON.parse(text) as any), response);
    } catch (error) {
      result = problem("invalid-request", 400, (error as Error).message);
    }
    if (this.#isSilent) {
      return;
    }
    const body = result.body === undefined ? "" : JSON.stringify(result.body);
    response.writeHead(result.status, {
      "ringfence-cluster": this.#id,
      "content-type": result.status < 400 ? "application/json" : "application/problem+json",
      ...(result.status === 204 ? {} : { "content-length": Buffer.byteLength(body) }),
      ...(result.status === 503 ? { "retry-after": "1" } : {}),
    });
    response.end(body);
  }

  // biome-ignore lint/suspicious/noExplicitAny: the client has checked it.
  async #answer(method: string, url: string, body: any, response: ServerResponse): Promise<Result> {
    const [path = "", query] = url.split("?");
    if (method === "GET" && (path === "/livez" || path === "/readyz")) {
      return { status: 200, body: { status: "live" } };
    }
    if (this.#away !== undefined) {
      return problem("unavailable", 503, "no leader accepted the request in time: it was not done");
    }
    this.#run();
    if (path === "/v1/keys") {
      const keys = this.#table.keys(new URLSearchParams(query).get("prefix") ?? "");
      return { status: 200, body: { keys, next: null, revision: 0 } };
    }
    const result = await this.#do(method, path, body, response);
    // What is due may have changed.
    this.#run();
    return result;
  }

  // biome-ignore lint/suspicious/noExplicitAny: the client has checked it.
  async #do(method: string, path: string, body: any, response: ServerResponse): Promise<Result> {
    const id = path.slice(LEASES.length).split("/")[0] ?? "";
    switch (`${method} ${path.startsWith(LEASES) ? path.replace(id, "ID") : path}`) {
      case "PUT /v1/leases/ID":
        return await this.#put(id, body, response);
      case "DELETE /v1/leases/ID":
        return this.#table.release(id);
      case "POST /v1/leases/ID/renew":
        return this.#table.renew(id, body.ttl_ms);
      case "POST /v1/renew":
        return all(body.lease_ids.map((id: string) => this.#table.renew(id, undefined)));
      case "POST /v1/batch":
        return all(body.operations.map((operation: Operation) => this.#operate(operation)));
      case "GET /v1/cluster":
        return { status: 200, body: { cluster_id: this.#id, ...STATUS, ...this.#table.counts } };
      case "POST /v1/revoke":
        return this.#table.end(body.key, body.token, "revoked");
      default:
        return method === "GET" && path.startsWith(KEYS)
          ? { status: 200, body: this.#table.key(decodeURIComponent(path.slice(KEYS.length))) }
          : problem("not-found", 404, `a fake cluster has no ${method} ${path}`);
    }
  }

  /** Acquires, and waits in the queue if that is asked for, unless the client hangs up. */
  #put(id: string, wanted: Wanted, response: ServerResponse): Promise<Result> {
    return new Promise((resolve) => {
      const result = this.#table.acquire(id, wanted, resolve);
      const request: Request | undefined = "untilMs" in result ? result : undefined;
      if (request === undefined) {
        resolve(result as Result);
      } else {
        this.#run();
      }
      response.once("close", () => {
        if (!response.writableFinished) {
          this.#run();
          this.#table.hungUp(id, request);
          this.#run();
        }
      });
    });
  }

  #operate({ acquire, renew, release }: Operation): Result {
    if (acquire !== undefined) {
      return this.#table.acquire(acquire.lease_id, { ...acquire, wait_ms: 0 }, undefined) as Result;
    }
    return renew === undefined
      ? this.#table.release(release?.lease_id ?? "")
      : this.#table.renew(renew.lease_id, renew.ttl_ms);
  }
}

/** One operation of a batch. */
interface Operation {
  readonly acquire?: Wanted & { readonly lease_id: string };
  readonly renew?: { readonly lease_id: string; readonly ttl_ms?: number };
  readonly release?: { readonly lease_id: string };
}

function all(results: readonly Result[]): Result {
  return { status: 200, body: { results: results.map(({ status, body = null }) => ({ status, body })) } };
}

/** A fake cluster and a client of it, which end with a test of `node:test`, or of whatever else has `after`. */
export async function fakeRingfence(
  test: { after(end: () => Promise<void>): void },
  options: Omit<ClientOptions, "urls" | "clock"> = {},
): Promise<{ cluster: FakeCluster; client: Client }> {
  const cluster = await FakeCluster.start();
  test.after(() => cluster.close());
  return { cluster, client: cluster.client(options) };
}
