/**
 * Acquires, renewals and releases of one turn of the event loop share a request: most of a call's cost, here and at the leader, is per request.
 *
 *     a call --> the queue --at the end of the turn, if a permit is free--> alone, by itself --> its own request
 *                   ^                                                       '-- several -----> POST /v1/batch
 *                   '-- a permit becomes free, and what its answer resumed has asked for more
 *
 * A *permit* is the right to have a request under way. Two are enough: while one is answered, the other is filled, and a busy client sends ever
 * larger batches instead of more of them. Nothing waits in a batch. An acquire that waits is answered with a place in the cluster's queue, where
 * it waits with a request of its own; one that is alone may wait briefly in its own request, but never with the last permit.
 *
 * Each call gets the response that it would have got alone. If a batch gets none, none of its calls does. If it is refused as a whole, for
 * example by a proxy's limit or by a node that does not know a field, each call is sent alone. A call that is given up leaves the others alone; only
 * when all are given up, the request is.
 */
import type { Moment } from "./clock.js";
import { Failure, type Request, type Response, type Server } from "./server.js";
import { Stop } from "./stop.js";
import { readProblem, readResults } from "./wire.js";

/** How many requests are under way at a node. Measured beside 8: as the client is bound by its processor, fewer and larger are better. */
const PERMITS = 2;
/** What one request may have: a node takes 1,000 operations and 1 MiB. */
const MAX_BATCH = 1_000;
const MAX_BYTES = 512 * 1_024;

/** A request that may be an operation of a batch. */
export interface Batched extends Request {
  readonly operation: object;
}

/** Whether the request may be part of a batch. */
export function isBatched(request: Request): request is Batched {
  return request.operation !== undefined;
}

/** A call that waits or is under way. A class, like `Part`: if the first objects of a literal got old, V8 makes all later ones old from the start. */
class Call {
  readonly request: Batched;
  readonly text: string;
  readonly timeMs: number;
  readonly hasAnother: () => boolean;
  readonly #resolve: (response: Response | undefined) => void;
  readonly #reject: (error: unknown) => void;
  isGone = false;
  /** Stops listening for what stops the call. */
  ignore: (() => void) | undefined;
  /** Tells the request that it is in. */
  left: ((reason: unknown) => void) | undefined;

  constructor(
    request: Batched,
    timeMs: number,
    hasAnother: () => boolean,
    resolve: (response: Response | undefined) => void,
    reject: (error: unknown) => void,
  ) {
    this.request = request;
    this.text = JSON.stringify(request.operation);
    this.timeMs = timeMs;
    this.hasAnother = hasAnother;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  resolve(response: Response | undefined): void {
    this.ignore?.();
    this.#resolve(response);
  }

  reject(error: unknown): void {
    this.ignore?.();
    this.#reject(error);
  }

  giveUp(reason: unknown): void {
    this.isGone = true;
    this.left?.(reason);
    this.reject(reason);
  }
}

/** The answer to one operation of a batch. */
class Part implements Response {
  readonly sent: Moment;
  readonly status: number;
  readonly leader: string | undefined;
  readonly cluster: string | undefined;
  readonly retryAfterMs: number | undefined;
  readonly body = "";
  readonly json: unknown;

  constructor({ sent, leader, cluster, retryAfterMs }: Response, status: number, json: unknown) {
    this.sent = sent;
    this.status = status;
    this.leader = leader;
    this.cluster = cluster;
    this.retryAfterMs = retryAfterMs;
    this.json = json;
  }
}

export class Batcher {
  readonly #server: Server;
  #queue: Call[] = [];
  #permits = PERMITS;
  #isWaiting = false;
  #isAboutTo = false;

  constructor(server: Server) {
    this.#server = server;
  }

  /**
   * Sends it, perhaps with others. `undefined`: nothing was done, and it has to be sent alone. Fails with a `Failure`, or the reason of `stop`.
   * `hasAnother` says whether another node would do if this one is silent.
   */
  send(
    request: Batched,
    timeMs: number,
    stop: Stop | undefined,
    hasAnother: () => boolean,
  ): Promise<Response | undefined> {
    return new Promise((resolve, reject) => {
      const call = new Call(request, timeMs, hasAnother, resolve, reject);
      call.ignore = stop?.listen((reason) => call.giveUp(reason));
      this.#queue.push(call);
      this.#soon();
    });
  }

  /** Sends what is in the queue once all that runs in this turn has asked. */
  #soon(): void {
    if (!this.#isAboutTo && this.#permits > 0 && this.#queue.length > 0) {
      this.#isAboutTo = true;
      setImmediate(() => {
        this.#isAboutTo = false;
        this.#flush();
      });
    }
  }

  #flush(): void {
    while (this.#permits > 0) {
      const calls = this.#take();
      const [first] = calls;
      if (first === undefined) {
        return;
      }
      const waits = (first.request.waitMs ?? 0) > 0;
      const isAlone = calls.length === 1 && !(waits && this.#isWaiting);
      this.#permits -= 1;
      this.#isWaiting ||= isAlone && waits;
      const done = () => {
        this.#permits += 1;
        this.#isWaiting &&= !(isAlone && waits);
        this.#soon();
      };
      void (isAlone ? this.#one(first) : this.#several(calls)).then(done);
    }
  }

  /** What fits into one request, without those that were given up. */
  #take(): Call[] {
    const calls: Call[] = [];
    let bytes = 0;
    let taken = 0;
    for (const call of this.#queue) {
      bytes += call.isGone ? 0 : Buffer.byteLength(call.text) + 1;
      if (calls.length === MAX_BATCH || (bytes > MAX_BYTES && calls.length > 0)) {
        break;
      }
      taken += 1;
      if (!call.isGone) {
        calls.push(call);
      }
    }
    this.#queue = taken === this.#queue.length ? [] : this.#queue.slice(taken);
    return calls;
  }

  async #one(call: Call): Promise<void> {
    try {
      call.resolve(await this.#send([call], call.request, call.timeMs));
    } catch (error) {
      this.#fail([call], error);
    }
  }

  async #several(calls: readonly Call[]): Promise<void> {
    const text = `{"operations":[${calls.map((call) => call.text).join()}]}`;
    const timeMs = Math.max(...calls.map((call) => call.timeMs - (call.request.waitMs ?? 0)));
    try {
      const response = await this.#send(calls, { method: "POST", path: "/v1/batch", text }, timeMs);
      const responses = this.#split(response, calls.length);
      calls.forEach((call, index) => {
        call.resolve(responses[index]);
      });
    } catch (error) {
      this.#fail(calls, error);
    }
  }

  /** Those in the queue do not wait for the same again: they go elsewhere at once. */
  #fail(calls: readonly Call[], error: unknown): void {
    for (const call of calls) {
      call.reject(error);
    }
    if (error instanceof Failure) {
      const queue = this.#queue;
      this.#queue = [];
      for (const call of queue) {
        call.reject(error.wasSent ? new Failure(false, error.message) : error);
      }
    }
  }

  /** Sends a request for these calls, until all are given up, or the node is silent while another may answer. */
  async #send(calls: readonly Call[], request: Request, timeMs: number): Promise<Response> {
    const broken = new Stop();
    let left = calls.length;
    for (const call of calls) {
      call.left = (reason) => {
        left -= 1;
        if (left === 0) {
          broken.stop(reason);
        }
      };
    }
    const unwatch = this.#server.pulse.watch(() => {
      if (calls[0]?.hasAnother()) {
        broken.stop(new Failure(true, "it does not answer"));
      }
    });
    try {
      return await this.#server.send(request, timeMs, broken);
    } finally {
      unwatch(broken.isStopped && !(broken.reason instanceof Failure));
    }
  }

  /** The response to each of so many operations; `undefined` for one that has to be sent alone. */
  #split(response: Response, count: number): (Response | undefined)[] {
    const { status, body } = response;
    if (status !== 200) {
      const isRefused = status >= 400 && status < 500 && status !== 429 && isProblem(body, status);
      return Array(count).fill(isRefused ? undefined : response);
    }
    try {
      return readResults(JSON.parse(body), count).map((result) =>
        // The others' results left no room for this one, which was not done.
        result.status === 413 ? undefined : new Part(response, result.status, result.body),
      );
    } catch (error) {
      throw new Failure(true, `${this.#server}: unreadable response to a batch: ${(error as Error).message}`);
    }
  }
}

function isProblem(body: string, status: number): boolean {
  try {
    return readProblem(JSON.parse(body), status) !== undefined;
  } catch {
    return false;
  }
}
