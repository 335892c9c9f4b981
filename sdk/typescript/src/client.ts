/** The client. */
import { setMaxListeners } from "node:events";
import { acquire } from "./acquire.js";
import { type Clock, systemClock } from "./clock.js";
import { Cluster } from "./cluster.js";
import { ClosedError, InvalidError, LostError, type RingfenceError, UnavailableError, UnknownError } from "./errors.js";
import { Held } from "./held.js";
import { Keeper } from "./keeper.js";
import { Lease } from "./lease.js";
import { type Confirmation, Lifetime } from "./lifetime.js";
import { Nodes } from "./nodes.js";
import { type ClientOptions, type Keys, type LockOptions, parseClient, parseLeaseId, parseLock } from "./options.js";
import { sleep } from "./timers.js";

/** What is done under a lease. The signal aborts when the lease is lost: stop then. */
export type Work<T> = (lease: Lease, signal: AbortSignal) => T | Promise<T>;

/** How to lead. */
export interface LeadOptions extends Omit<LockOptions, "wait" | "signal"> {
  /** Stops campaigning, and tells the work to stop. */
  signal?: AbortSignal;
  /** Is told why a campaign failed for now, as in an outage. It goes on after a second. */
  onError?: (error: RingfenceError) => void;
}

/** How long a campaign that failed waits. */
const CAMPAIGN_PAUSE_MS = 1_000;
/** The longest interval of a timer. */
const LONG_MS = 2 ** 31 - 1;

/** A client of one cluster. All leases of a client share its connections and its renewals: make one per process. */
export class Client implements AsyncDisposable {
  readonly #cluster: Cluster;
  readonly #keeper: Keeper;
  /** The acquires that are under way, and what cancels each. */
  readonly #acquiring = new Map<AbortController, Promise<unknown>>();
  #isClosed = false;

  /** Sends nothing: the first call shows whether the cluster is reachable. Throws an `InvalidError`. */
  constructor(options: ClientOptions) {
    const { urls, encryption } = parseClient(options);
    const clock: Clock = options.clock ?? systemClock;
    this.#cluster = new Cluster(new Nodes(urls, encryption, clock), clock);
    this.#keeper = new Keeper(this.#cluster);
  }

  /**
   * Acquires: waits its turn, first come first served, through changes of the leader. Release the lease when the work is done.
   *
   * If the signal of the options aborts, the place in the queue, or the grant, is given back in the background, and the error is its reason.
   */
  async acquire(keys: Keys, options: LockOptions = {}): Promise<Lease> {
    const request = parseLock(keys, options);
    const confirmation = await this.#cancellable(options.signal, (signal) => acquire(this.#cluster, request, signal));
    const lifetime = new Lifetime(confirmation, request.renews, request.maxHoldMs);
    return this.#hold(confirmation, lifetime, request.holdAtLeastMs);
  }

  /** Tries once: `undefined` if a key is not free. To learn who holds it, acquire with `wait: 0`. */
  async tryAcquire(keys: Keys, options: Omit<LockOptions, "wait"> = {}): Promise<Lease | undefined> {
    try {
      return await this.acquire(keys, { ...options, wait: 0 });
    } catch (error) {
      if ((error as Partial<RingfenceError>)?.kind === "Held") {
        return undefined;
      }
      throw error;
    }
  }

  /** Acquires, works, and releases once the work has ended. */
  using<T>(keys: Keys, work: Work<T>): Promise<T>;
  /**
   * Acquires, works, and releases once the work has ended. The error of the work is passed on as it is. If the work succeeded, but the lease was
   * lost meanwhile, the error is a `LostError`: somebody else may have worked at the same time.
   */
  using<T>(keys: Keys, options: LockOptions, work: Work<T>): Promise<T>;
  async using<T>(keys: Keys, options: LockOptions | Work<T>, work?: Work<T>): Promise<T> {
    const [given, body] = typeof options === "function" ? [{}, options] : [options, work];
    if (typeof body !== "function") {
      throw new InvalidError("work", "is no function");
    }
    return under(await this.acquire(keys, given), body);
  }

  /**
   * Leads: campaigns for the keys, and works while it holds them. If they are lost, the signal of the work aborts; once the work has ended, it
   * campaigns again. It returns what the work returns, unless the lease was lost meanwhile, and throws what the work throws, unless that is the
   * end of its signal. During an outage it goes on campaigning.
   */
  async lead<T>(keys: Keys, work: Work<T>, options: LeadOptions = {}): Promise<T> {
    const { onError, ...lock } = options;
    if (typeof work !== "function") {
      throw new InvalidError("work", "is no function");
    }
    for (;;) {
      let lease: Lease;
      try {
        lease = await this.acquire(keys, lock);
      } catch (error) {
        if (!(error instanceof UnavailableError || error instanceof UnknownError)) {
          throw error;
        }
        onError?.(error);
        await this.#cancellable(lock.signal, (signal) => sleep(CAMPAIGN_PAUSE_MS * (0.5 + Math.random()), signal));
        continue;
      }
      try {
        return await under(lease, (lease) => stoppable(lease, work, lock.signal));
      } catch (error) {
        const isLost = lease.reason !== undefined && lease.reason !== "released";
        const isEnd = error instanceof LostError || (error as Error | undefined)?.name === "AbortError";
        if (!isLost || !isEnd || lock.signal?.aborted) {
          throw error;
        }
      }
    }
  }

  /**
   * Takes over a lease by the id that `detach` left, perhaps in another process: renews it once, and from then on as if it had been acquired here.
   * Nobody else may renew or release it. A `LostError` says that it has ended.
   */
  async adopt(leaseId: string, options: Pick<LockOptions, "maxHold" | "renew" | "signal"> = {}): Promise<Lease> {
    const id = parseLeaseId(leaseId);
    const { maxHoldMs, renews } = parseLock("adopted", options);
    const confirmation = await this.#cancellable(options.signal, (signal) =>
      this.#cluster.renew(id, undefined, signal),
    );
    return this.#hold(confirmation, new Lifetime(confirmation, renews, maxHoldMs), 0);
  }

  /**
   * Cancels the acquires that are under way, and waits until all is given back that was abandoned or could not be released at once, for at most
   * about half a minute. Call it before the program ends; otherwise such leases end with their time-to-live.
   *
   * Leases that are held stay so, since their work may still run: release them first.
   */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const controller of this.#acquiring.keys()) {
      controller.abort(new ClosedError());
    }
    await Promise.allSettled(this.#acquiring.values());
    await this.#cluster.settled();
    this.#cluster.nodes.closeIdle();
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #hold(confirmation: Confirmation, lifetime: Lifetime, holdAtLeastMs: number): Lease {
    const held = new Held(confirmation, lifetime, this.#cluster.clock);
    this.#keeper.add(held);
    return new Lease(held, { cluster: this.#cluster, keeper: this.#keeper }, holdAtLeastMs);
  }

  /** Runs `work`, and cancels it when the signal aborts or the client is closed. */
  async #cancellable<T>(signal: AbortSignal | undefined, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    if (this.#isClosed) {
      throw new ClosedError();
    }
    signal?.throwIfAborted();
    const controller = new AbortController();
    const abort = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    const working = work(controller.signal);
    this.#acquiring.set(controller, working);
    try {
      return await working;
    } finally {
      this.#acquiring.delete(controller);
      signal?.removeEventListener("abort", abort);
    }
  }
}

/** Works under a lease, and releases it once the work has ended. */
async function under<T>(lease: Lease, work: Work<T>): Promise<T> {
  // What is to be done on a loss does not wait for an exit.
  const awake = setInterval(() => {}, LONG_MS);
  try {
    const result = await work(lease, lease.signal);
    try {
      await lease.release();
    } catch (error) {
      // A release without a definite outcome goes on in the background.
      if (error instanceof LostError) {
        throw error;
      }
    }
    return result;
  } finally {
    // After an error of the work, which is not to be hidden by another.
    await lease.release().catch(() => undefined);
    clearInterval(awake);
  }
}

/** Work that is told to stop when the lease is lost, or when `stop` aborts. */
async function stoppable<T>(lease: Lease, work: Work<T>, stop: AbortSignal | undefined): Promise<T> {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  const ends = [lease.signal, ...(stop === undefined ? [] : [stop])];
  const end = () => controller.abort(ends.find(({ aborted }) => aborted)?.reason);
  for (const signal of ends) {
    signal.addEventListener("abort", end, { once: true });
  }
  if (ends.some(({ aborted }) => aborted)) {
    end();
  }
  try {
    return await work(lease, controller.signal);
  } finally {
    for (const signal of ends) {
      signal.removeEventListener("abort", end);
    }
  }
}
