/**
 * How long a lease is certainly live, as far as its holder can know.
 *
 * The cluster guarantees `expires_in_ms` from when the request was *sent*, because it cannot have received the request earlier. The
 * holder subtracts an allowance for clocks that differ:
 *
 *      sent        renewed            in doubt            until     sent + expires_in
 *       |------------|------------------|-------------------|---------|
 *       :    1/3     :       1/3        :        1/3        : allowance
 *            held           held               unsure         lost, for good
 *
 * Each confirmation gives a bound of its own, and the latest bound counts, in whatever order responses arrive. A confirmation that
 * arrives after `until` does not revive the lease: its loss may have been reported already.
 */
import { elapsed, type Moment } from "./clock.js";
import type { LossReason } from "./errors.js";
import type { Grant } from "./wire.js";

/** The allowance for clocks that run at different speeds, as a fraction of the time. */
const DRIFT = 1 / 500;
/** The allowance for timers, which fire late, and for the steps of a clock. */
const LATE_MS = 15;

/** How long a lease lives, and when the request that was answered so was sent. */
interface Times {
  readonly grant: Pick<Grant, "ttlMs" | "expiresInMs">;
  readonly sent: Moment;
}

/** A grant, and when the request that it answers was sent. */
export interface Confirmation extends Times {
  readonly grant: Grant;
}

/**
 * How a lease stands. `held`: confirmed lately. `unsure`: it certainly lives for the time that remains, but two thirds of its time have
 * passed without a renewal; it may become held again. `lost`: it has ended, or may have, for good. `released`: by this holder.
 */
export type State = "held" | "unsure" | "lost" | "released";

export class Lifetime {
  readonly #maxHoldMs: number;
  readonly #began: Moment;
  #renews: boolean;
  #ttlMs: number;
  /** When the last of the confirmed requests was sent. */
  #lastSent: Moment;
  /** The confirmation that reaches furthest: when it was sent, and for how long it is certain. */
  #sent: Moment;
  #sureMs: number;
  #lost: LossReason | undefined;

  constructor({ grant, sent }: Times, renews = true, maxHoldMs = Number.POSITIVE_INFINITY) {
    this.#renews = renews;
    this.#maxHoldMs = maxHoldMs;
    this.#began = sent;
    this.#ttlMs = grant.ttlMs;
    this.#lastSent = sent;
    this.#sent = sent;
    this.#sureMs = sureMs(grant);
  }

  /** The same without its longest hold, which is the holder's, and as if it was not lost. */
  successor(): Lifetime {
    const next = new Lifetime({ grant: { ttlMs: this.#ttlMs, expiresInMs: 0 }, sent: this.#sent });
    next.#lastSent = this.#lastSent;
    next.#sureMs = this.#sureMs;
    return next;
  }

  get renews(): boolean {
    return this.#renews;
  }

  get ttlMs(): number {
    return this.#ttlMs;
  }

  /** Why it is lost, if it is. A loss that was reported once is final. */
  loss(at: Moment): LossReason | undefined {
    if (this.#lost === undefined && this.#left(at) <= 0) {
      this.#lost = this.#isRenewedEnough(at) ? "max-hold" : "unconfirmed";
    }
    return this.#lost;
  }

  state(at: Moment): State {
    const loss = this.loss(at);
    if (loss !== undefined) {
      return loss === "released" ? "released" : "lost";
    }
    return this.#needsRenewals(at) && this.#confirmedFor(at) <= this.#ttlMs / 3 ? "unsure" : "held";
  }

  /** For how many milliseconds it certainly lives; 0 if it is lost. */
  remainingMs(at: Moment): number {
    return this.loss(at) === undefined ? this.#left(at) : 0;
  }

  /** Whether a holder may begin: at least half of the time-to-live is left. */
  isFresh(at: Moment): boolean {
    return this.#confirmedFor(at) >= this.#ttlMs / 2;
  }

  /** How long until it is due to be renewed, a third of its time after the last confirmed request; for ever if it is not. */
  renewInMs(at: Moment): number {
    return this.#needsRenewals(at) ? this.#confirmedFor(at) - (this.#ttlMs * 2) / 3 : Number.POSITIVE_INFINITY;
  }

  /** Extends it. Returns whether it was in time, and nothing that was sent later is confirmed already. */
  confirm({ grant, sent }: Confirmation, at: Moment): boolean {
    if (this.loss(at) !== undefined) {
      return false;
    }
    if (sureMs(grant) - elapsed(sent, at) > this.#confirmedFor(at)) {
      this.#sent = sent;
      this.#sureMs = sureMs(grant);
    }
    if (sent.monotonic < this.#lastSent.monotonic) {
      return false;
    }
    this.#lastSent = sent;
    // Another client may have changed it, by the lease's id.
    this.#ttlMs = grant.ttlMs;
    return true;
  }

  /** Ends it for this reason, unless it is lost already. */
  lose(reason: LossReason, at: Moment): void {
    if (this.loss(at) === undefined) {
      this.#lost = reason;
    }
  }

  /** From now on it is held until it ends. */
  stopRenewing(): void {
    this.#renews = false;
  }

  #confirmedFor(at: Moment): number {
    return this.#sureMs - elapsed(this.#sent, at);
  }

  #left(at: Moment): number {
    return Math.min(this.#confirmedFor(at), this.#maxHoldMs - elapsed(this.#began, at));
  }

  #needsRenewals(at: Moment): boolean {
    return this.#renews && !this.#isRenewedEnough(at);
  }

  /** Whether its holder gives it up before it ends. */
  #isRenewedEnough(at: Moment): boolean {
    return this.#maxHoldMs - elapsed(this.#began, at) <= this.#confirmedFor(at);
  }
}

function sureMs({ expiresInMs }: Times["grant"]): number {
  return expiresInMs - expiresInMs * DRIFT - LATE_MS;
}
