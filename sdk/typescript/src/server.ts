/**
 * HTTP to one node, over connections that are reused.
 *
 * A failure tells whether any byte of the request may have been sent, which separates *not done* from *maybe done*. An abandoned
 * request resets its connection, which also takes back what the kernel has not delivered yet: so an abandoned PUT does not arrive
 * minutes later. (Node cannot set TCP_USER_TIMEOUT.) A connection is used again only if its last response was read in full.
 */
import { type ClientRequest, type IncomingMessage, request as send } from "node:http";
import { Batcher } from "./batch.js";
import { type Clock, type Moment, now } from "./clock.js";
import {
  CONNECT_MS,
  type ConnectionArgs,
  Connections,
  type Encryption,
  isRefused,
  NoPlace,
  type Places,
  reset,
} from "./connections.js";
import { Target } from "./dial.js";
import { Pulse } from "./pulse.js";
import { Stop } from "./stop.js";
import { limit } from "./timers.js";

/** How long a sign of life may take. */
const ANSWERS_WITHIN_MS = 1_500;
/** A node of which a thread has not run for so long does not live: that thread may have the request that waits. */
const THREADS_RUN = { "ringfence-within-ms": "1000" };
/** The error for a connection that nobody waits for any more. Not the user's reason: Node takes a falsy error for none. */
const GONE = new Error("nobody waits for it any more");
/** The longest body that is read: the results of 1,000 renewals take 8 MiB at most. */
const MAX_BODY = 16 * 2 ** 20;

/** A request that any node can take. */
export interface Request {
  readonly method: "GET" | "PUT" | "POST" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  /** The body, if it is JSON already. */
  readonly text?: string;
  /** The same in a batch. */
  readonly operation?: object;
  /** How long it waits in the cluster's queue. */
  readonly waitMs?: number;
  /** Whether it has a connection that others do not have to share: that of the renewals, that of the probes, or one for a wait. */
  readonly isApart?: "renewal" | "probe" | "wait";
  readonly headers?: Readonly<Record<string, string>>;
}

/** A whole response. */
export interface Response {
  readonly sent: Moment;
  readonly status: number;
  /** The leader's URL, if the node knows it. */
  readonly leader: string | undefined;
  /** The id of the node's cluster, if the node has one. */
  readonly cluster: string | undefined;
  readonly retryAfterMs: number | undefined;
  readonly body: string;
  /** The body, if it was read already: that of one operation of a batch. */
  readonly json?: unknown;
}

/** There is no response. `wasSent`: some of the request may have been sent. */
export class Failure extends Error {
  readonly wasSent: boolean;

  constructor(wasSent: boolean, why: string) {
    super(why);
    this.wasSent = wasSent;
  }
}

/** Nothing was sent, and with the same files on both sides nothing will be: one side does not trust the certificate of the other. */
export class Distrust extends Failure {
  constructor(why: string) {
    super(false, why);
  }
}

/** Nothing was sent, for want of something of this client's: that says nothing of the node. */
export class Unasked extends Failure {
  constructor(why: string) {
    super(false, why);
  }
}

/** The host and the port of a node. */
export function addressOf(url: URL): string {
  return `${url.hostname}:${url.port || (url.protocol === "https:" ? 443 : 80)}`;
}

export class Server {
  readonly address: string;
  /** As in the header `Host`. */
  readonly #authority: string;
  readonly target: Target;
  readonly #encryption: Encryption | undefined;
  readonly #clock: Clock;
  readonly #agent: Connections;
  /** Renewals and probes never stand behind anything else, nor behind each other. */
  readonly #renewals: Connections;
  readonly #probes: Connections;
  readonly pulse: Pulse;
  readonly batcher: Batcher;

  constructor(url: URL, encryption: Encryption | undefined, clock: Clock, places?: Places) {
    this.address = addressOf(url);
    this.#authority = url.host;
    const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
    this.target = new Target(host, Number(url.port || (encryption === undefined ? 80 : 443)));
    this.#encryption = encryption;
    this.#clock = clock;
    this.#agent = new Connections(this.target, encryption, places);
    this.#renewals = new Connections(this.target, encryption);
    this.#probes = new Connections(this.target, encryption);
    this.pulse = new Pulse(() => this.probe());
    this.batcher = new Batcher(this);
  }

  /** Its name in errors. */
  toString(): string {
    return `${this.#encryption === undefined ? "http" : "https"}://${this.#authority}`;
  }

  /** Sends a request and reads the whole response, within `timeMs` of being connected. Fails with a `Failure`, or the reason of `stop`. */
  send(request: Request, timeMs: number, stop?: Stop): Promise<Response> {
    return this.#exchange(request, timeMs, stop);
  }

  /** Asks whether it lives. Fails unless it answers that it does, or that it has no room; nothing that matters was sent. */
  async probe(): Promise<Response> {
    const failure = (why: string) => new Failure(false, `${this}: ${why}`);
    const probe: Request = { method: "GET", path: "/livez", headers: THREADS_RUN, isApart: "probe" };
    const response = await this.#exchange(probe, ANSWERS_WITHIN_MS).catch((error) => {
      throw error instanceof Distrust ? error : failure("it does not answer");
    });
    // A node without room for another connection does not say of which cluster it is. One that hangs does.
    const hasNoRoom = response.cluster === undefined && response.body.includes("urn:ringfence:problem:");
    if (response.status >= 500 && !hasNoRoom) {
      throw failure(`${response.status} of a probe`);
    }
    return response;
  }

  /** Closes connections that are not in use, and asks for no more signs of life. */
  closeIdle(): void {
    this.pulse.end();
    for (const { freeSockets } of [this.#agent, this.#renewals, this.#probes]) {
      for (const socket of Object.values(freeSockets).flat()) {
        socket?.destroy();
      }
    }
  }

  #connections({ isApart }: Request): Connections {
    return isApart === "renewal" ? this.#renewals : isApart === "probe" ? this.#probes : this.#agent;
  }

  #exchange(request: Request, timeMs: number, stop?: Stop): Promise<Response> {
    return new Promise((resolve, reject) => {
      if (stop?.isStopped) {
        reject(stop.reason);
        return;
      }
      const body = request.text ?? (request.body === undefined ? undefined : JSON.stringify(request.body));
      let sent: Moment | undefined;
      const agent = this.#connections(request);
      const gone = new Stop();
      // Connecting has a time limit of its own.
      const connectMs = Math.min(timeMs, CONNECT_MS) * (this.#encryption === undefined ? 1 : 2);
      let clear = () => {};
      const begin = () => {
        clear = limit(connectMs, () => broken(`no connection within ${Math.round(connectMs)} ms`));
      };
      const given: ConnectionArgs = {
        agent,
        wanted: { withinMs: Math.min(timeMs, CONNECT_MS), gone, begin },
        method: request.method,
        path: request.path,
        headers: {
          host: this.#authority,
          ...request.headers,
          ...(body === undefined
            ? {}
            : { "content-type": "application/json", "content-length": Buffer.byteLength(body) }),
          ...(this.#encryption?.credential === undefined
            ? {}
            : { authorization: `Bearer ${this.#encryption.credential}` }),
        },
      };
      const outgoing = send(given);
      const end = () => {
        clear();
        ignore?.();
      };
      const fail = (error: unknown) => {
        end();
        gone.stop(GONE);
        abandon(outgoing);
        reject(error);
      };
      const broken = (why: string) => fail(new Failure(sent !== undefined, `${this}: ${why}`));
      // A failure that is the reason does not know whether anything was sent.
      const ignore = stop?.listen((reason) => (reason instanceof Failure ? broken(reason.message) : fail(reason)));
      outgoing.once("socket", () => {
        clear();
        sent = now(this.#clock);
        clear = limit(timeMs, () => {
          this.target.distrust();
          broken(`no response within ${Math.round(timeMs)} ms`);
        });
      });
      // After an end that was told already, errors of the connection tell nothing new.
      outgoing.on("error", (error) => {
        if (isRefused(error) || (!outgoing.reusedSocket && refusesCertificate(error))) {
          fail(new Distrust(`${this}: ${error.message}`));
        } else if (error instanceof NoPlace) {
          fail(new Unasked(`${this}: ${error.message}`));
        } else {
          broken(error.message);
        }
      });
      outgoing.once("response", (response) => {
        read(response).then(
          (text) => {
            end();
            resolve({ sent: sent ?? now(this.#clock), body: text, ...head(response) });
          },
          (error: Error) => broken(`half a response: ${error.message}`),
        );
      });
      outgoing.end(body);
    });
  }
}

/**
 * Whether the node refused this client's certificate, or wanted one. It says so after the handshake, when a request may have been sent,
 * but has not read that.
 */
function refusesCertificate(error: NodeJS.ErrnoException): boolean {
  return /^ERR_SSL_\w*ALERT_\w*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)/.test(error.code ?? "");
}

/** Ends a request whose response is not wanted any more, so that neither reaches anybody. */
function abandon(outgoing: ClientRequest): void {
  const { socket } = outgoing;
  if (socket !== null && socket !== undefined && !socket.destroyed) {
    reset(socket);
  }
  outgoing.destroy();
}

/** Reads the body. An iterator would cost a tenth of a call. */
function read(response: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let bytes = 0;
    response.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > MAX_BODY) {
        reject(new Error("it is too long"));
        response.destroy();
      }
      chunks.push(chunk);
    });
    response.once("end", () => resolve(Buffer.concat(chunks).toString("utf8")));
    response.on("error", reject);
    response.once("close", () => reject(new Error("it ended early")));
  });
}

function head(response: IncomingMessage): Omit<Response, "sent" | "body"> {
  const one = (name: string) => {
    const value = response.headers[name];
    return typeof value === "string" ? value : undefined;
  };
  const retryAfter = Number(one("retry-after") ?? Number.NaN);
  return {
    status: response.statusCode ?? 0,
    leader: one("ringfence-leader"),
    cluster: one("ringfence-cluster"),
    retryAfterMs: Number.isFinite(retryAfter) && retryAfter >= 0 ? retryAfter * 1_000 : undefined,
  };
}
