/** The handle of a lease. */
import { InvalidError, type LossReason, LostError, TimedOutError } from "./errors.js";
import type { Held } from "./held.js";
import type { State } from "./lifetime.js";
import { type CallOptions, parseCall, parseTtl } from "./options.js";
import type { Owner, Release } from "./release.js";
import { timed } from "./timers.js";

const MAX_CLAIMS = 8_192;

/** The headers that a guarded resource reads. */
export type FencingHeaders = Record<"Ringfence-Key" | "Ringfence-Token" | "Ringfence-Fence", string>;

/**
 * A granted lease. It is renewed until it is released, and keeps the process alive as long as it is, unless `unref` was called.
 *
 * `await using lease = …` releases it at the end of the block, and throws nothing, since that would hide the error of the block: so end the
 * block with `lease.throwIfLost()`, or call `client.using`, which does.
 *
 * One that is dropped is released once it is collected, with a warning. One whose `signal` or `lost` was asked for is kept then, also with a
 * warning: somebody may wait for these.
 */
export class Lease implements AsyncDisposable {
  /** The fencing token: send it with every access to what the lease protects. */
  readonly token: number;
  readonly #held: Held;
  readonly #owner: Owner;
  readonly #release: Release;

  /** @internal */
  constructor(release: Release, owner: Owner) {
    this.token = release.held.grant.token;
    this.#held = release.held;
    this.#owner = owner;
    this.#release = release;
    release.watch(this);
  }

  /** Its id. Anyone who knows it can renew and release the lease: keep it out of logs. */
  get leaseId(): string {
    return this.#held.leaseId;
  }

  /** Its keys, in the order of the request. */
  get keys(): readonly string[] {
    return this.#held.keys;
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

  /**
   * The `options` of a connection to PostgreSQL, or the variable PGOPTIONS of a program, whose writes then claim by themselves.
   *
   * The table is to be protected `by_connection`. Connect anew for each lease, and `CALL ringfence.touch_all()` before the first read. Throws a
   * `LostError` if it is lost, and an `InvalidError` if an older holder shares a key, as its fence rises and options do not, or if the keys take
   * more than 8 KiB.
   */
  postgresOptions(): string {
    this.throwIfLost();
    const { keys } = this.#held.grant;
    if (keys.some(({ fence }) => fence !== this.token)) {
      throw new InvalidError("fence", "it rises, and the options of a connection do not: an older holder shares a key");
    }
    const claims = keys
      .map(({ key }) => `${encodeURIComponent(key)}=${this.token}`)
      .sort()
      .join();
    if (claims.length > MAX_CLAIMS) {
      throw new InvalidError("keys", `they take ${claims.length} of ${MAX_CLAIMS} bytes as options of a connection`);
    }
    return `-c ringfence.may_claim=${claims}`;
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
    this.#release.awaited();
    return this.#held.signal;
  }

  /** Resolves with the reason when the lease is lost or released. It never rejects. */
  get lost(): Promise<LossReason> {
    this.#release.awaited();
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

  /** From now on it does not keep the process alive. It is still renewed, and ends with its time-to-live after the process has ended. */
  unref(): this {
    this.#owner.keeper.unref(this.#held);
    return this;
  }

  /** Renews it now, for its own time-to-live or another, in milliseconds. There is no need to if the lease renews itself. */
  async renew(ttl?: number, options: CallOptions = {}): Promise<void> {
    const ttlMs = ttl === undefined ? undefined : parseTtl(ttl);
    const { timeoutMs } = parseCall(options);
    this.throwIfLost();
    try {
      const { cluster } = this.#owner;
      this.#held.confirm(await timed(timeoutMs, timedOut, (stop) => cluster.renew(this.leaseId, ttlMs, stop)));
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
   * A `LostError` says that it was lost before: what was done under it may have met another holder. After an `UnknownError`, an
   * `UnavailableError` or a `TimedOutError` the release goes on in the background. With `holdAtLeast`, the keys stay taken until that time is over.
   */
  release(options: CallOptions = {}): Promise<void> {
    try {
      const { timeoutMs } = parseCall(options);
      const end = this.#release.release();
      return timeoutMs === undefined ? end : timed(timeoutMs, timedOut, () => end);
    } catch (error) {
      return Promise.reject(error);
    }
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
    this.#release.detach();
    return this.leaseId;
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

function timedOut(timeoutMs: number): TimedOutError {
  return new TimedOutError(timeoutMs, "timeout");
}
