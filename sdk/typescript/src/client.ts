/** The client. */
import { setMaxListeners } from "node:events";
import { acquire, type Told } from "./acquire.js";
import { Bag } from "./bag.js";
import { type Clock, now, systemClock } from "./clock.js";
import { Cluster } from "./cluster.js";
import {
  ClosedError,
  InvalidError,
  type LossReason,
  LostError,
  type RingfenceError,
  TimedOutError,
  UnavailableError,
  UnknownError,
} from "./errors.js";
import { Held } from "./held.js";
import type { Tell } from "./hooks.js";
import { Keeper } from "./keeper.js";
import { Lease } from "./lease.js";
import { type Confirmation, Lifetime } from "./lifetime.js";
import { Nodes } from "./nodes.js";
import {
  type CallOptions,
  type ClientOptions,
  type Keys,
  type LockOptions,
  parseCall,
  parseClient,
  parseClose,
  parseLeaseId,
  parseLock,
} from "./options.js";
import { type Owner, Release } from "./release.js";
import { follow, Stop } from "./stop.js";
import { LONGEST_MS, sleep } from "./timers.js";
import { named, textOf } from "./warn.js";

/** What is done under a lease. The signal aborts when the lease is lost: stop then. */
export type Work<T> = (lease: Lease, signal: AbortSignal) => T | Promise<T>;

/** What was left when a client was closed. */
export interface Closed {
  /** The keys of each lease that was not released, as far as is known. They are free once its time-to-live has passed. */
  readonly left: readonly (readonly string[])[];
}

/** How to lead. */
export interface LeadOptions extends Omit<LockOptions, "wait" | "timeout" | "signal"> {
  /** Stops campaigning, and tells the work to stop. */
  signal?: AbortSignal;
  /**
   * Is told why a campaign failed for now, as in an outage, and what the work threw after its lease was lost. Then it goes on campaigning. By
   * default, these are warnings.
   */
  onError?: (error: unknown) => void;
}

/** How long a campaign that failed waits. */
const CAMPAIGN_PAUSE_MS = 1_000;
/** How often to warn of acquires that wait. */
const WARN_INTERVAL_MS = 10_000;
/** Of how many keys a warning says who holds them. */
const MAX_VIEWS = 3;

/** A client of one cluster. All leases of a client share its connections and its renewals: make one per process. */
export class Client implements AsyncDisposable {
  readonly #owner: Owner;
  readonly #tell: Tell;
  /** What belongs to each handle. */
  readonly #leases = new WeakMap<Lease, Release>();
  /** The calls that are under way, and what stops each. */
  readonly #calls = new Bag<{ readonly stop: Stop; readonly working: Promise<unknown> }>();
  #closing: Promise<Closed> | undefined;
  /** When it warned of an acquire that waits. */
  #warnedAt = Number.NEGATIVE_INFINITY;

  /** Sends nothing: the first call shows whether the cluster is reachable. Throws an `InvalidError`. */
  constructor(options: ClientOptions) {
    const { urls, encryption, warn, tell } = parseClient(options);
    const clock: Clock = options.clock ?? systemClock;
    const cluster = new Cluster(new Nodes(urls, encryption, clock), clock);
    this.#tell = tell;
    this.#owner = { cluster, keeper: new Keeper(cluster, warn), warn, leases: new Bag() };
  }

  /**
   * Acquires: waits its turn, first come first served, through changes of the leader. Release the lease when the work is done.
   *
   * If the signal of the options aborts, the place in the queue, or the grant, is given back in the background, and the error is its reason.
   */
  async acquire(keys: Keys, options: LockOptions = {}): Promise<Lease> {
    return await this.#acquire(keys, options, (keys) => void this.#waits(keys));
  }

  /** Whether anybody holds the key now. To be sure that nobody has it later, acquire it. It needs the right to read the key. */
  async locked(key: string, options: CallOptions = {}): Promise<boolean> {
    const [claim] = parseLock(key, {}).claims;
    const { timeoutMs } = parseCall(options);
    const view = await this.#call(undefined, timeoutMs, (stop) => this.#owner.cluster.view(claim?.key ?? "", stop));
    return view.holders.length > 0;
  }

  async #acquire(keys: Keys, options: LockOptions, waits: Told["waits"]): Promise<Lease> {
    const request = parseLock(keys, options);
    const { cluster } = this.#owner;
    const begun = performance.now();
    const confirmation = await this.#call(options.signal, request.timeoutMs, (stop) =>
      acquire(cluster, request, { waits, waited: (keys, ms) => this.#tell("waited", keys, ms) }, stop),
    );
    const { grant } = confirmation;
    const view = { keys: grant.keys.map(({ key }) => key), token: grant.token };
    this.#tell("granted", view, performance.now() - begun);
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
    const lease = await this.acquire(keys, given);
    return await under(lease, this.#leases.get(lease) as Release, body);
  }

  /**
   * Leads: campaigns for the keys, and works while it holds them. If they are lost, the signal of the work aborts; once the work has ended, it
   * campaigns again, whatever the work threw then, and also after a `StaleError`, which is the storage's word that the lease is lost. Otherwise it
   * returns what the work returns, and throws what the work throws. During an outage it goes on campaigning.
   */
  async lead<T>(keys: Keys, work: Work<T>, options: LeadOptions = {}): Promise<T> {
    const { onError, ...lock } = options;
    if (typeof work !== "function") {
      throw new InvalidError("work", "is no function");
    }
    if (onError !== undefined && typeof onError !== "function") {
      throw new InvalidError("onError", "is no function");
    }
    for (;;) {
      let lease: Lease;
      try {
        // A candidate may wait for as long as others lead.
        lease = await this.#acquire(keys, lock, () => {});
      } catch (error) {
        // The lease may have been revoked, or have ended, before the client knew of it.
        if (![UnavailableError, UnknownError, LostError].some((kind) => error instanceof kind)) {
          throw error;
        }
        this.#report("a campaign failed for now", error, onError);
        await this.#pause(lock.signal);
        continue;
      }
      const release = this.#leases.get(lease) as Release;
      try {
        return await under(lease, release, (lease) => stoppable(lease, work, lock.signal));
      } catch (error) {
        const isStale = (error as Partial<RingfenceError> | undefined)?.kind === "Stale";
        const isLost = (await lossOf(lease)) !== undefined;
        if (release.isTaken && error instanceof LostError) {
          throw new ClosedError();
        }
        if (!(isStale || isLost) || release.isTaken || lock.signal?.aborted) {
          throw error;
        }
        this.#report("the lease of a leader was lost", error, onError);
        if (!isLost) {
          // Nobody else has to be the reason: the numbers of the storage may be those of another cluster.
          await this.#pause(lock.signal);
        }
      }
    }
  }

  /**
   * Takes over a lease by the id that `detach` left, perhaps in another process: renews it once, and from then on as if it had been acquired here.
   * Nobody else may renew or release it. A `LostError` says that it has ended.
   */
  async adopt(
    leaseId: string,
    options: Pick<LockOptions, "maxHold" | "renew" | "signal" | "timeout"> = {},
  ): Promise<Lease> {
    const id = parseLeaseId(leaseId);
    const { maxHoldMs, renews, timeoutMs } = parseLock("adopted", options);
    const confirmation = await this.#call(options.signal, timeoutMs, (stop) =>
      this.#owner.cluster.renew(id, undefined, stop, false),
    );
    this.#owner.keeper.leave(id);
    return this.#hold(confirmation, new Lifetime(confirmation, renews, maxHoldMs), 0);
  }

  /**
   * Ends the client: cancels the acquires that are under way, releases all leases that it holds, and waits for that, and for what is given back
   * in the background, for at most `within` milliseconds; 5,000 by default. What is left then, nothing releases any more: it ends with its
   * time-to-live. The work under a lease that is released so is told by its signal. A repeat has the same result.
   */
  close(options: { within?: number } = {}): Promise<Closed> {
    try {
      const { withinMs } = parseClose(options);
      this.#closing ??= this.#close(withinMs);
      return this.#closing;
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** As `close`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(withinMs: number): Promise<Closed> {
    const { cluster, keeper, leases, warn } = this.#owner;
    let timer: NodeJS.Timeout | undefined;
    const end = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, Math.min(withinMs, LONGEST_MS));
    });
    const giveBack = () => {
      for (const { stop } of this.#calls.values()) {
        stop.stop(new ClosedError());
      }
      for (const release of leases.values()) {
        release.take();
      }
      return Promise.allSettled(this.#calls.values().map(({ working }) => working));
    };
    const left = (await cluster.settled(giveBack, end)).map(({ keys }) => keys);
    clearTimeout(timer);
    cluster.stop.stop(new ClosedError());
    keeper.clear();
    cluster.nodes.closeIdle();
    if (left.length > 0) {
      warn("RINGFENCE_CLOSE", `not released when the client was closed: ${named(left.flat())}`);
    }
    return { left };
  }

  #hold(confirmation: Confirmation, lifetime: Lifetime, holdAtLeastMs: number): Lease {
    const held = new Held(confirmation.grant, lifetime, this.#owner.cluster.clock, this.#tell);
    // Once: a reading of the clocks costs more than all else here.
    const at = now(this.#owner.cluster.clock);
    const release = new Release(held, this.#owner, holdAtLeastMs, at);
    const lease = new Lease(release, this.#owner);
    this.#leases.set(lease, release);
    this.#owner.keeper.add(held, at);
    if (this.#closing !== undefined) {
      release.take();
      throw new ClosedError();
    }
    return lease;
  }

  /** Runs `work`, and stops it when the signal aborts, when this time is over, or when the client is closed. */
  async #call<T>(
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    work: (stop: Stop) => Promise<T>,
  ): Promise<T> {
    if (this.#closing !== undefined) {
      throw new ClosedError();
    }
    signal?.throwIfAborted();
    const stop = new Stop();
    const ignore = follow(signal, (reason) => stop.stop(reason));
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => stop.stop(new TimedOutError(timeoutMs, "timeout")), Math.min(timeoutMs, LONGEST_MS));
    const working = work(stop);
    const link = this.#calls.add({ stop, working });
    try {
      return await working;
    } finally {
      link.remove();
      clearTimeout(timer);
      ignore();
    }
  }

  /** Warns of an acquire that has waited for long, and says for whom: perhaps for this very client. */
  async #waits(keys: readonly string[]): Promise<void> {
    const { cluster, leases, warn } = this.#owner;
    const own = new Map(leases.values().map(({ held }) => [held.token, held.keys]));
    const isForItself = [...own.values()].some((held) => held.some((key) => keys.includes(key)));
    // One of many that wait is enough, unless it waits for ever.
    if (!isForItself && performance.now() - this.#warnedAt < WARN_INTERVAL_MS) {
      return;
    }
    this.#warnedAt = performance.now();
    const found = await Promise.all(
      keys.slice(0, MAX_VIEWS).map(async (key) => {
        // Of no consequence: it may not have the right to read them.
        const { holders } = await cluster.view(key, cluster.stop).catch(() => ({ holders: [] }));
        return holders.slice(0, 1).map(({ token, holder }) => {
          const by = holder === null ? "" : ` by ${JSON.stringify(holder)}`;
          const self = own.has(token) ? ", which this client itself holds" : "";
          return `; ${named([key])} is held${by} with token ${token}${self}`;
        });
      }),
    );
    warn("RINGFENCE_QUEUE", `an acquire has waited for 5 s for ${named(keys)}${found.flat().join("")}`);
  }

  async #pause(signal: AbortSignal | undefined): Promise<void> {
    await this.#call(signal, undefined, (stop) => sleep(CAMPAIGN_PAUSE_MS * (0.5 + Math.random()), stop));
  }

  #report(what: string, error: unknown, onError: LeadOptions["onError"]): void {
    const { warn } = this.#owner;
    if (onError === undefined) {
      warn("RINGFENCE_LEAD", `${what}: ${textOf(error)}`);
      return;
    }
    try {
      onError(error);
    } catch (failure) {
      warn("RINGFENCE_CALLBACK", `onError has failed: ${textOf(failure)}`);
    }
  }
}

/** Why a lease was lost before it was released, also if only the release told so. */
async function lossOf(lease: Lease): Promise<LossReason | undefined> {
  try {
    await lease.release();
  } catch (error) {
    if (error instanceof LostError) {
      return error.reason;
    }
  }
  return undefined;
}

/** Works under a lease, and releases it once the work has ended. */
async function under<T>(lease: Lease, release: Release, work: Work<T>): Promise<T> {
  // What is to be done on a loss does not wait for an exit.
  const awake = setInterval(() => {}, LONGEST_MS);
  try {
    const result = await work(lease, lease.signal);
    if (release.isTaken) {
      // By `close`, under the work.
      throw new LostError("released");
    }
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
export async function stoppable<T>(lease: Lease, work: Work<T>, stop: AbortSignal | undefined): Promise<T> {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  const ignores = [lease.signal, stop].map((signal) => follow(signal, (reason) => controller.abort(reason)));
  try {
    return await work(lease, controller.signal);
  } finally {
    for (const ignore of ignores) {
      ignore();
    }
  }
}
