/** A server that answers as a test says, over plain sockets, so that it can answer wrongly. */

import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { createServer as createTlsServer, type TlsOptions } from "node:tls";
import { Client, type Lease } from "../../src/index.js";
import { until } from "./until.js";

/** A request that arrived. */
export interface Received {
  readonly method: string;
  readonly path: string;
  /** The last segment of the path, or the one before `renew`. */
  readonly leaseId: string;
  readonly headers: string;
  // biome-ignore lint/suspicious/noExplicitAny: whatever was sent.
  readonly body: any;
  readonly socket: Socket;
}

/** How to answer: bytes to write, or something else to do. */
export type Answer = string | ((request: Received) => void | Promise<void>);

/** Chooses the answer to a request. `count` is how many requests of this method and kind came before. */
export type Script = (request: Received, count: number) => Answer | undefined;

export class Played implements AsyncDisposable {
  readonly received: Received[] = [];
  readonly #server: Server;
  readonly #isEncrypted: boolean;
  readonly #sockets = new Set<Socket>();
  readonly #counts = new Map<string, number>();
  connections = 0;

  private constructor(script: Script, tls: TlsOptions | undefined) {
    const serve = (socket: Socket) => this.#serve(socket, script);
    this.#isEncrypted = tls !== undefined;
    this.#server = tls === undefined ? createServer(serve) : createTlsServer(tls, serve);
    // Also of those whose handshake fails.
    this.#server.on("connection", () => {
      this.connections += 1;
    });
  }

  static async start(script: Script, tls?: TlsOptions): Promise<Played> {
    const played = new Played(script, tls);
    played.#server.listen(0, "127.0.0.1");
    await once(played.#server, "listening");
    return played;
  }

  get url(): string {
    const address = this.#server.address();
    return `${this.#isEncrypted ? "https" : "http"}://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
  }

  /** The requests of this method, without probes, and the operations of batches that would be such. */
  of(method: string): Received[] {
    const all = this.received.flatMap((request) => (isBatch(request) ? operations(request) : [request]));
    return all.filter((request) => request.method === method && request.path !== "/livez");
  }

  /** Waits for the nth request of this method, from 0. */
  async nth(method: string, n: number): Promise<Received> {
    return await until(`request ${n} of ${method}`, () => this.of(method)[n]);
  }

  #serve(socket: Socket, script: Script): void {
    this.#sockets.add(socket);
    socket.on("error", () => {}).on("close", () => this.#sockets.delete(socket));
    let text = "";
    // One character per byte.
    socket.setEncoding("latin1").on("data", (chunk: string) => {
      text += chunk;
      for (;;) {
        const end = text.indexOf("\r\n\r\n");
        const length = Number(/content-length: (\d+)/i.exec(text.slice(0, end))?.[1] ?? 0);
        if (end < 0 || text.length < end + 4 + length) {
          return;
        }
        const [head, body] = [text.slice(0, end), text.slice(end + 4, end + 4 + length)];
        text = text.slice(end + 4 + length);
        this.#answer(socket, head, body, script);
      }
    });
  }

  #answer(socket: Socket, head: string, body: string, script: Script): void {
    const [method = "", path = ""] = head.split(" ");
    const leaseId = path.split("/")[3] ?? "";
    const request = {
      method,
      path,
      leaseId,
      headers: head,
      body: body === "" ? undefined : JSON.parse(Buffer.from(body, "latin1").toString()),
      socket,
    };
    this.received.push(request);
    const answer = script(request, this.#count(request)) ?? this.#usual(request, script);
    if (typeof answer === "string") {
      socket.write(answer);
    } else {
      void answer(request);
    }
  }

  #count({ method, path }: Received): number {
    const kind = `${method} ${path.split("/").at(-1)?.replace(/.*-.*/, "")}`;
    const count = this.#counts.get(kind) ?? 0;
    this.#counts.set(kind, count + 1);
    return count;
  }

  /** Operations of a batch are answered as they would be alone, if the script has a whole response. */
  #usual(request: Received, script: Script): string {
    if (!isBatch(request)) {
      return usual(request);
    }
    return results(request, (operation) => {
      const answer = script(operation, this.#count(operation));
      if (typeof answer !== "string") {
        return one(operation);
      }
      const [head = "", body = ""] = answer.split("\r\n\r\n");
      return { status: Number(head.split(" ")[1]), ...(body === "" ? {} : { body: JSON.parse(body) }) };
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    this.#server.close();
    await once(this.#server, "close");
  }
}

/** A whole response. */
export function response(status: number, body: unknown = undefined, headers: Record<string, string> = {}): string {
  const text = body === undefined ? "" : typeof body === "string" ? body : JSON.stringify(body);
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} .\r\ncontent-length: ${Buffer.byteLength(text)}\r\n${lines.join("")}\r\n${text}`;
}

export function problem(name: string, status: number, more: object = {}, headers: Record<string, string> = {}): string {
  return response(status, problemBody(name, status, more), headers);
}

/** The time-to-live that each lease was asked for, by its id. */
const TTLS = new Map<string, number>();

/** The grant of the lease that a request is about, which may be another than `more` says. */
export function grant(
  request: Received,
  more: { lease_id?: string; [name: string]: unknown } = {},
): Record<string, unknown> {
  const keys = ((request.body?.keys ?? [{ key: "a" }]) as { key: string }[]).map(({ key }) => ({
    key,
    mode: "exclusive",
    limit: null,
    fence: 7,
  }));
  const lease_id = more.lease_id ?? request.leaseId;
  const ttl_ms = request.body?.ttl_ms ?? TTLS.get(lease_id) ?? 15_000;
  TTLS.set(lease_id, ttl_ms);
  return {
    lease_id,
    state: "granted",
    token: 7,
    holder: null,
    ttl_ms,
    expires_in_ms: ttl_ms,
    keys,
    ...more,
  };
}

export function waiting(request: Received): string {
  return response(202, { lease_id: request.leaseId, state: "waiting", ahead: 0 });
}

/** What a node without other clients answers. */
export function usual(request: Received): string {
  switch (request.method) {
    case "PUT":
      return response(201, grant(request));
    case "DELETE":
      return response(204);
    case "POST":
      if (request.path === "/v1/renew") {
        const ids = request.body.lease_ids as string[];
        return response(200, { results: ids.map((lease_id) => ({ status: 200, body: grant(request, { lease_id }) })) });
      }
      if (isBatch(request)) {
        return results(request, one);
      }
      return response(200, grant(request));
    default:
      return response(200, "{}");
  }
}

/** An operation of a batch, as the request that it would be alone. */
export interface Operation extends Received {
  readonly index: number;
}

/** The result of an operation. */
export interface Result {
  readonly status: number;
  readonly body?: unknown;
}

/** The response to a batch, made of that to each operation. */
export function results(request: Received, answer: (operation: Operation) => Result): string {
  return response(200, { results: operations(request).map(answer) });
}

/** The operations of a batch. */
export function operations(request: Received): Operation[] {
  const methods = { acquire: "PUT", renew: "POST", release: "DELETE" };
  return (request.body.operations as Record<string, { lease_id: string }>[]).map((operation, index) => {
    const [[kind, body]] = Object.entries(operation) as [[keyof typeof methods, { lease_id: string }]];
    const path = `/v1/leases/${body.lease_id}${kind === "renew" ? "/renew" : ""}`;
    return { ...request, method: methods[kind], path, leaseId: body.lease_id, body, index };
  });
}

/** What a node without other clients answers to an operation. */
export function one(operation: Operation): Result {
  return operation.method === "DELETE"
    ? { status: 204 }
    : { status: operation.method === "PUT" ? 201 : 200, body: grant(operation) };
}

/** The body of a problem. */
export function problemBody(name: string, status: number, more: object = {}): object {
  return { type: `urn:ringfence:problem:${name}`, title: name, status, detail: `${name} it is`, ...more };
}

/** Whether it is a batch. */
export const isBatch = ({ path }: Received) => path === "/v1/batch";

/** Whether it renews many leases at once. */
export const isRenewal = ({ method, path }: Received) => method === "POST" && path === "/v1/renew";

/** Answers renewals of all leases at once; anything else as usual. */
export function renewals(answer: (request: Received, count: number) => ReturnType<Script>): Script {
  let count = 0;
  return (request) => {
    if (!isRenewal(request)) {
      return undefined;
    }
    count += 1;
    return answer(request, count - 1);
  };
}

/** Only records what it gets. */
export const hang: Script = () => () => {};

/** A client of these servers. */
export function client(...servers: readonly { url: string }[]): Client {
  return new Client({ urls: servers.map(({ url }) => url) });
}

/** A client that keeps its warnings. */
export function warned(played: Played): { warnings: string[]; it: Client } {
  const warnings: string[] = [];
  const onWarning = (code: string, message: string) => void warnings.push(`${code} ${message}`);
  return { warnings, it: new Client({ urls: [played.url], onWarning }) };
}

/** Leases that a test has not released live on in its client. */
export async function released(...leases: readonly Lease[]): Promise<void> {
  await Promise.allSettled(leases.map((lease) => lease.release()));
}
