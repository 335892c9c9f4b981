/**
 * One acquire, from the request to a lease that is safe to use.
 *
 *                 .- 202: the place is kept <-.
 *                 v                           |
 *      new id --> PUT, waiting up to 30 s ----+-- 201, 200 --> fresh? --> granted
 *        ^        ^        |                  |                  '- no --> renew once --> granted
 *        |        '--------' ambiguous: the same PUT elsewhere, for 5 s
 *        '-- the lease ended unused (its connection was lost for long)
 *
 * An acquire that was in the queue has reached the cluster, so during an outage it retries until its wait is over. The first PUT of an id, and
 * one after a PUT without a definite outcome, waits only briefly, to learn the state of the lease soon. However the acquire ends, the lease
 * is given back as long as it may be granted or in the queue.
 *
 * The time of a grant counts from when *its* PUT was sent. After a wait, that is too long ago to begin work, so the client renews once.
 */
import { randomUUID } from "node:crypto";
import { ATTEMPT_MS, Attempts, RETRY_MS } from "./attempts.js";
import { now } from "./clock.js";
import type { Cluster } from "./cluster.js";
import { HeldError, LostError, TimedOutError } from "./errors.js";
import { type Confirmation, Lifetime } from "./lifetime.js";
import type { LockRequest } from "./options.js";
import { isDenial } from "./outcome.js";
import type { Request } from "./server.js";
import { Stop } from "./stop.js";
import { Backoff, orStop, sleep } from "./timers.js";
import type { Turn } from "./turns.js";
import { type Grant, type Problem, readGrant, readWaiting } from "./wire.js";

/** How long one PUT waits: proxies often close connections that are silent for a minute. */
const SLICE_MS = 30_000;
/** How long a PUT waits that is to be answered soon. */
const BRIEF_MS = 100;
/** How long an acquire stands in the queue before that is told. */
const LONG_MS = 5_000;
/** How long an acquire with a place waits for a connection at most before it asks for its place again: it may be granted meanwhile. */
const POLL_MS = 1_000;
/** How long an acquire that has timed out waits until it has left the queue. Then that goes on in the background. */
const LEAVES_WITHIN_MS = 1_000;

/** Who is told of its time in the queue. */
export interface Told {
  /** It is over. */
  waited(keys: readonly string[], ms: number): void;
  /** It has been long. */
  waits(keys: readonly string[]): void;
}

/** What ends the use of an id without an error: the lease ended unused, and another id may do. */
const UNUSED = Symbol("unused");

/** Acquires, under one id after the other. Throws a `RingfenceError`, or the reason of `stop`. */
export async function acquire(cluster: Cluster, request: LockRequest, told: Told, stop?: Stop): Promise<Confirmation> {
  const lookup = cluster.nodes.resolve();
  if (lookup !== undefined) {
    // The lookup is not part of the wait.
    await orStop(lookup, stop);
  }
  const begun = performance.now();
  const leftMs = () => Math.max(request.waitMs - (performance.now() - begun), 0);
  const backoff = new Backoff();
  for (;;) {
    const confirmation = await new Acquire(cluster, request, leftMs, told, stop).run();
    if (confirmation !== UNUSED) {
      return confirmation;
    }
    // A try was granted, for less time than it takes to make sure of that.
    if (request.waitMs === 0 && performance.now() - begun >= RETRY_MS) {
      throw new LostError("unconfirmed");
    }
    if (request.waitMs > 0 && leftMs() === 0) {
      throw new TimedOutError(request.waitMs);
    }
    await sleep(backoff.next(), stop);
  }
}

/** An acquire under one id. */
class Acquire {
  readonly #cluster: Cluster;
  readonly #request: LockRequest;
  readonly #leftMs: () => number;
  readonly #stop: Stop | undefined;
  readonly #told: Told;
  /** Tells that it waits for long. */
  #timer: NodeJS.Timeout | undefined;
  readonly #leaseId = randomUUID();
  readonly #begun = performance.now();
  readonly #attempts: Attempts;
  /** Whether the lease is to be given back. */
  #isArmed = false;
  #hasPlace = false;
  /** Whether it stood in the queue. */
  #hasWaited = false;
  /** Its connection for waiting, once it has a place. */
  #turn: Turn | undefined;
  /** Since when there was no definite outcome, if the last was none. */
  #unansweredSince: number | undefined;

  constructor(cluster: Cluster, request: LockRequest, leftMs: () => number, told: Told, stop: Stop | undefined) {
    this.#told = told;
    this.#cluster = cluster;
    this.#request = request;
    this.#leftMs = leftMs;
    this.#stop = stop;
    this.#attempts = new Attempts(cluster.nodes, stop);
  }

  async run(): Promise<Confirmation | typeof UNUSED> {
    try {
      const confirmation = await this.#acquire();
      if (confirmation !== UNUSED) {
        this.#isArmed = false;
      }
      return confirmation;
    } finally {
      this.#turn?.end();
      this.#attempts.end();
      clearTimeout(this.#timer);
      if (this.#hasPlace) {
        this.#told.waited(this.#keys, performance.now() - this.#begun);
      }
      if (this.#isArmed) {
        this.#cluster.releaseInBackground(this.#leaseId, this.#keys);
      }
    }
  }

  async #acquire(): Promise<Confirmation | typeof UNUSED> {
    for (;;) {
      const outcome = await this.#put();
      switch (outcome.is) {
        case "done": {
          if (outcome.value !== undefined) {
            return await this.#freshen({ grant: outcome.value, sent: outcome.response.sent });
          }
          this.#unansweredSince = undefined;
          this.#hasPlace = true;
          this.#timer ??= setTimeout(() => this.#told.waits(this.#keys), LONG_MS).unref();
          this.#hasWaited = true;
          if (this.#leftMs() === 0) {
            throw await this.#leave();
          }
          continue;
        }
        case "refused":
          return this.#refused(outcome.problem);
        case "limited":
          this.#unansweredSince = undefined;
          if (this.#leftMs() < outcome.retryAfterMs) {
            this.#isArmed = this.#attempts.maybeDone || this.#hasPlace;
            throw this.#attempts.limit(outcome.problem, outcome.retryAfterMs, this.#leaseId);
          }
          await sleep(outcome.retryAfterMs, this.#stop);
          continue;
      }
      const retries = this.#hasWaited && this.#leftMs() > 0;
      const silentMs = performance.now() - (this.#unansweredSince ?? performance.now());
      if (!retries && (silentMs >= RETRY_MS || this.#attempts.areHopeless)) {
        // The place may still stand.
        this.#attempts.maybeDone ||= this.#hasPlace;
        this.#isArmed = this.#attempts.maybeDone;
        throw this.#attempts.failure(this.#leaseId);
      }
    }
  }

  /** One PUT. `undefined` is a place in the queue. */
  async #put() {
    const isBrief = !this.#hasPlace || this.#unansweredSince !== undefined || !this.#cluster.nodes.best.isProven;
    const mayWait = !isBrief && (await this.#hasTurn());
    const waitMs = Math.floor(Math.min(this.#leftMs(), mayWait ? SLICE_MS : BRIEF_MS));
    const putAt = performance.now();
    const idleMs = this.#attempts.idleMs;
    this.#isArmed = true;
    const outcome = await this.#attempts.attempt(this.#message(waitMs, mayWait), waitMs + ATTEMPT_MS, (json, status) =>
      readPut(json, status, this.#leaseId),
    );
    if (mayWait && outcome.is === "done" && this.#cluster.nodes.waits.waiting > 0) {
      // It has had its slice.
      this.#turn?.end();
      this.#turn = undefined;
    }
    const sentAt = putAt + this.#attempts.idleMs - idleMs;
    if (outcome.is === "not-done") {
      this.#unansweredSince ??= sentAt;
    } else if (outcome.is === "ambiguous") {
      // A node that held the request for longer than it looks for a leader had it in the queue.
      this.#hasWaited ||= performance.now() - sentAt > RETRY_MS;
      // How a long wait ended says nothing of how long the cluster has been silent.
      this.#unansweredSince ??= Math.max(sentAt, performance.now() - ATTEMPT_MS);
    }
    return outcome;
  }

  /**
   * Whether a connection is free for a wait. If none is within a second, the place has to be asked for again: it is kept for 5 s. A grant that is
   * not asked for within a quarter of its time-to-live may end before its holder learns of it.
   */
  async #hasTurn(): Promise<boolean> {
    this.#turn ??= this.#cluster.nodes.waits.ask();
    if (!this.#turn.isReady) {
      const either = new Stop();
      const ignore = this.#stop?.listen((reason) => either.stop(reason));
      this.#turn.whenReady(() => either.stop(undefined));
      try {
        const pollMs = Math.min(POLL_MS, this.#request.ttlMs / 4);
        await sleep(Math.min(pollMs * (0.75 + Math.random() / 4), this.#leftMs()), either);
      } catch {
        this.#stop?.throwIfStopped();
      } finally {
        ignore?.();
      }
    }
    return this.#turn.isReady;
  }

  get #keys(): readonly string[] {
    return this.#request.claims.map(({ key }) => key);
  }

  #message(waitMs: number, mayWait: boolean): Request {
    const { claims, ttlMs, holder, metadata } = this.#request;
    const acquire = {
      keys: claims,
      ttl_ms: ttlMs,
      // A node that is cut off lets go those whose place is kept.
      keep_place: waitMs > 0,
      ...(holder === undefined ? {} : { holder }),
      ...(metadata === undefined ? {} : { metadata }),
    };
    const request = {
      method: "PUT",
      path: `/v1/leases/${this.#leaseId}`,
      body: { ...acquire, wait_ms: waitMs },
      waitMs,
    } as const;
    return mayWait
      ? { ...request, isApart: "wait" }
      : { ...request, operation: { acquire: { lease_id: this.#leaseId, ...acquire } } };
  }

  /** Leaves the queue: the caller may end now, or ask again, and no place may stay behind. */
  async #leave(): Promise<TimedOutError> {
    try {
      await this.#cluster.release(this.#leaseId, LEAVES_WITHIN_MS);
      this.#isArmed = false;
    } catch {
      // It goes on in the background.
    }
    return new TimedOutError(this.#request.waitMs);
  }

  #refused(problem: Problem): typeof UNUSED {
    const isTry = this.#request.waitMs === 0;
    // An abandoned PUT may still arrive, and find the key free.
    this.#isArmed = this.#attempts.maybeDone;
    if (isDenial(problem)) {
      this.#attempts.maybeDone ||= this.#hasPlace;
      this.#isArmed = this.#attempts.maybeDone;
    } else if (problem.name === "held" && isTry) {
      throw new HeldError(problem.holders, problem.waiters);
    } else if (problem.name === "held" || problem.name === "wait-timeout") {
      // The place is lost: no PUT came for it in time, or this was the last one.
      if (this.#leftMs() === 0) {
        throw new TimedOutError(this.#request.waitMs);
      }
      return UNUSED;
    } else if (problem.name === "lease-gone" && (problem.reason === "expired" || problem.reason === "abandoned")) {
      return UNUSED;
    }
    throw this.#attempts.refusal(problem, this.#leaseId);
  }

  /** Renews a lease that is not fresh enough to begin work. */
  async #freshen(confirmation: Confirmation): Promise<Confirmation | typeof UNUSED> {
    if (new Lifetime(confirmation).isFresh(now(this.#cluster.clock))) {
      return confirmation;
    }
    try {
      return await this.#cluster.renew(this.#leaseId, undefined, this.#stop);
    } catch (error) {
      if (error instanceof LostError && ["expired", "abandoned", "forgotten"].includes(error.reason)) {
        return UNUSED;
      }
      throw error;
    }
  }
}

function readPut(json: unknown, status: number, leaseId: string): Grant | undefined {
  if (status === 200 || status === 201) {
    return readGrant(json, leaseId);
  }
  if (status === 202) {
    readWaiting(json, leaseId);
    return undefined;
  }
  throw new TypeError("it is no response to an acquire");
}
