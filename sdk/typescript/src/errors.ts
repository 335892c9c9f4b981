/** Errors, as a holder sees them. Each has a `kind`, so that copies of this package can tell them apart, too. */
import type { Holder, Problem } from "./wire.js";

/** What kind of error it is. */
export type ErrorKind =
  | "Invalid"
  | "Held"
  | "TimedOut"
  | "Lost"
  | "Unavailable"
  | "Unknown"
  | "Rejected"
  | "Unauthorized"
  | "Stale"
  | "Closed";

/**
 * Why a lease is lost. `released`, `expired`, `revoked` and `abandoned` are what the cluster said; `forgotten`: it ended so long ago
 * that the cluster no longer knows it. `unconfirmed`: no renewal was confirmed in time, and the cluster may still have it. `max-hold`:
 * it reached its `maxHold`.
 */
export type LossReason = "released" | "expired" | "revoked" | "abandoned" | "forgotten" | "unconfirmed" | "max-hold";

const LOSSES: Record<LossReason, string> = {
  released: "it was released",
  expired: "it expired",
  revoked: "an operator revoked it",
  abandoned: "the connection was lost before the response",
  forgotten: "the cluster no longer knows it",
  unconfirmed: "no renewal was confirmed in time",
  "max-hold": "it reached its maximum hold time",
};

/** Any error of this package. */
export abstract class RingfenceError extends Error {
  /** What kind of error it is. */
  abstract readonly kind: ErrorKind;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The call is invalid, and nothing was sent. */
export class InvalidError extends RingfenceError {
  readonly kind = "Invalid";
  /** What is wrong: `ttl`, `keys[2]`, `urls[0]`. */
  readonly field: string;

  constructor(field: string, detail: string) {
    super(`${field}: ${detail}`);
    this.field = field;
  }
}

/** A key was not free, and the acquire did not wait. */
export class HeldError extends RingfenceError {
  readonly kind = "Held";
  /** Some of the leases in the way; none if only earlier waiters are, or if the caller may not read the keys. */
  readonly holders: readonly Holder[];
  /** The number of waiters in the longest of the queues. */
  readonly waiters: number;

  constructor(holders: readonly Holder[], waiters: number) {
    super(held(holders, waiters));
    this.holders = holders;
    this.waiters = waiters;
  }
}

/**
 * Not done in time. `wait`: it was not granted within the time in the queue, and the place is given up. `timeout`: the whole call took too long;
 * what it may have done is given back in the background.
 */
export class TimedOutError extends RingfenceError {
  readonly kind = "TimedOut";
  readonly reason: "wait" | "timeout";

  constructor(ms: number, reason: "wait" | "timeout" = "wait") {
    super(reason === "wait" ? `not granted within ${ms} ms` : `the call did not end within ${ms} ms`);
    this.reason = reason;
  }
}

/** The lease has ended, or may have. */
export class LostError extends RingfenceError {
  readonly kind = "Lost";
  readonly reason: LossReason;

  constructor(reason: LossReason) {
    super(`the lease is lost: ${LOSSES[reason]}`);
    this.reason = reason;
  }
}

/** No node was reachable, or none found a leader, for as long as the client retries. Nothing was done. */
export class UnavailableError extends RingfenceError {
  readonly kind = "Unavailable";

  constructor(why: string) {
    super(`the cluster is not available: ${why}`);
  }
}

/**
 * It may or may not have been done: no repeat was answered for as long as the client retries. After an acquire or a release, the lease is
 * being released in the background; if that fails, too, it ends with its time-to-live.
 */
export class UnknownError extends RingfenceError {
  readonly kind = "Unknown";
  /** Which lease. Whoever knows it can renew and release it: it does not belong into logs, and `console.log` does not show it. */
  declare readonly leaseId: string;

  constructor(why: string, leaseId: string) {
    super(`the outcome is unknown: ${why}`);
    Object.defineProperty(this, "leaseId", { value: leaseId, enumerable: false });
  }
}

/** The cluster refused the call, and nothing was done. */
export class RejectedError extends RingfenceError {
  readonly kind = "Rejected";
  /** The problem, as the node described it. */
  readonly problem: Problem;
  /** How long to wait before the next try, if the node said so. */
  readonly retryAfterMs: number | undefined;

  constructor(problem: Problem, retryAfterMs?: number) {
    super(problem.detail);
    this.problem = problem;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The credential is not valid, or does not give the right to do this. Nothing was done. */
export class UnauthorizedError extends RingfenceError {
  readonly kind = "Unauthorized";
  /** The problem, as the node described it. */
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

/** The storage has seen a newer token than that of this holder, who must stop. */
export class StaleError extends RingfenceError {
  readonly kind = "Stale";

  constructor(detail: string, options?: ErrorOptions) {
    super(detail, options);
  }
}

/** The client is closed. */
export class ClosedError extends RingfenceError {
  readonly kind = "Closed";

  constructor() {
    super("the client is closed");
  }
}

function held(holders: readonly Holder[], waiters: number): string {
  const [first] = holders;
  if (first === undefined) {
    return waiters > 0 ? `${waiters} earlier waiters come first` : "another lease holds a key";
  }
  // Another client chose these: they must not reach terminals and logs unescaped.
  const by = first.holder === null ? "" : ` by ${JSON.stringify(first.holder)}`;
  return `${JSON.stringify(first.key)} is held${by} with token ${first.token}`;
}
