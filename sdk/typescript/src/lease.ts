/** The handle of a lease. */

import { type Clock, elapsed, type Moment, now } from "./clock.js";
import type { Cluster } from "./cluster.js";
import { InvalidError, type LossReason, LostError } from "./errors.js";
import type { Held } from "./held.js";
import type { Keeper } from "./keeper.js";
import type { State } from "./lifetime.js";
import { MIN_TTL_MS, parseTtl } from "./options.js";

/** What a lease needs from its client. */
export interface Owner {
  readonly cluster: Cluster;
  readonly keeper: Keeper;
}

/** The headers that a guarded resource reads. */
export type FencingHeaders = Record<"Ringfence-Key" | "Ringfence-Token" | "Ringfence-Fence", string>;

/**
 * A granted lease. It is renewed until it is released.
 *
 * `await using lease = …` releases it at the end of the block, and throws nothing, since that would hide the error of the block: so end the
 * block with `lease.throwIfLost()`, or call `client.using`, which does.
 */
export class Lease implements AsyncDisposable {
  /** The fencing token: send it with every access to what the lease protects. */
  readonly token: number;
  readonly #held: Held;
  readonly #owner: Owner;
  readonly #clock: Clock;
  /** When the grant was known here, which is not before it was made. */
  readonly #granted: Moment;
  readonly #holdAtLeastMs: number;
  #end: Promise<void> | undefined;

  /** @internal */
  constructor(held: Held, owner: Owner, holdAtLeastMs: number) {
    this.token = held.grant.token;
    this.#held = held;
    this.#owner = owner;
    this.#clock = owner.cluster.clock;
    this.#granted = now(this.#clock);
    this.#holdAtLeastMs = holdAtLeastMs;
  }

  /** Its id. Anyone who knows it can renew and release the lease: keep it out of logs. */
  get leaseId(): string {
    return this.#held.leaseId;
  }

  /** Its keys, in the order of the request. */
  get keys(): readonly string[] {
    return this.#held.grant.keys.map(({ key }) => key);
  }

  /**
   * The lowest token that may still be live on the key, as of the last confirmation: a guard raises its number to this. With an exclusive lease
   * it is the token itself. The key may be left out if the lease has only one.
   */
  fence(key?: string): number {
    return this.#grantOf(key).fence;
  }

  /** The headers that carry the claim to a guarded resource. The key may be left out if the lease has only one. Throws a `LostError` if it is lost. */
  headers(key?: string): FencingHeaders {
    this.throwIfLost();
    const { key: name, fence } = this.#grantOf(key);
    return {
      "Ringfence-Key": encodeURIComponent(name),
      "Ringfence-Token": String(this.token),
      "Ringfence-Fence": String(fence),
    };
  }

  /** How it stands now. It reads the clock, so it is right even if the event loop was blocked. */
  get state(): State {
    return this.#held.state;
  }

  /** For how many more milliseconds it certainly lives; 0 once it is lost. */
  get remaining(): number {
    return this.#held.remainingMs;
  }

  /** Aborts when the lease is lost or released, before another client can have it. Its reason is a `LostError`. */
  get signal(): AbortSignal {
    return this.#held.signal;
  }

  /** Resolves with the reason when the lease is lost or released. It never rejects, and does not keep the process alive. */
  get lost(): Promise<LossReason> {
    return this.#held.lost;
  }

  /** Why it is lost, if it is. */
  get reason(): LossReason | undefined {
    return this.#held.look();
  }

  /** Throws a `LostError` if the lease is lost or released. */
  throwIfLost(): void {
    const loss = this.#held.look();
    if (loss !== undefined) {
      throw new LostError(loss);
    }
  }

  /** Renews it now, for its own time-to-live or another, in milliseconds. There is no need to if the lease renews itself. */
  async renew(ttl?: number): Promise<void> {
    const ttlMs = ttl === undefined ? undefined : parseTtl(ttl);
    this.throwIfLost();
    try {
      this.#held.confirm(await this.#owner.cluster.renew(this.leaseId, ttlMs));
    } catch (error) {
      if (!(error instanceof LostError)) {
        throw error;
      }
      this.#held.lose(error.reason);
    }
    this.throwIfLost();
  }

  /**
   * Releases the keys, once: a repeat has the same result. From now on the lease is lost for all who look at it.
   *
   * A `LostError` says that it was lost before: what was done under it may have met another holder. After an `UnknownError` or an
   * `UnavailableError` the release is repeated in the background. With `holdAtLeast`, the keys stay taken until that time is over.
   */
  release(): Promise<void> {
    this.#end ??= this.#release();
    return this.#end;
  }

  /** Releases it, and throws nothing. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release().catch(() => undefined);
  }

  /**
   * Leaves the lease to its id, for `client.adopt` in another process: nothing renews it here any more, and it ends with its time-to-live unless
   * somebody renews or releases it by this id.
   */
  detach(): string {
    this.throwIfLost();
    this.#held.lifetime.stopRenewing();
    this.#end ??= Promise.resolve();
    return this.leaseId;
  }

  async #release(): Promise<void> {
    const { cluster, keeper } = this.#owner;
    const at = now(this.#clock);
    const loss = this.#held.look(at);
    const leftMs = this.#held.lifetime.remainingMs(at);
    keeper.remove(this.#held);
    this.#held.lose("released", at);
    const holdMs = Math.ceil(this.#holdAtLeastMs - elapsed(this.#granted, at));
    if (loss === undefined && holdMs > 0) {
      await this.#hold(holdMs, leftMs);
      return;
    }
    try {
      await cluster.release(this.leaseId);
    } catch (error) {
      if (!(error instanceof LostError)) {
        cluster.releaseInBackground(this.leaseId);
      }
      if (loss === undefined) {
        throw error;
      }
    }
    if (loss !== undefined) {
      throw new LostError(loss);
    }
  }

  /** Sees to it that the keys stay taken for this time, even if the process ends, and releases them then. */
  async #hold(holdMs: number, leftMs: number): Promise<void> {
    const { cluster } = this.#owner;
    if (holdMs > leftMs) {
      await cluster.renew(this.leaseId, Math.max(holdMs, MIN_TTL_MS));
    }
    setTimeout(() => cluster.releaseInBackground(this.leaseId), holdMs).unref();
  }

  #grantOf(key: string | undefined) {
    const { keys } = this.#held.grant;
    const granted = key === undefined && keys.length === 1 ? keys[0] : keys.find((granted) => granted.key === key);
    if (granted === undefined) {
      throw new InvalidError(
        "key",
        key === undefined ? "the lease has several: name one" : `the lease has no key ${JSON.stringify(key)}`,
      );
    }
    return granted;
  }
}
