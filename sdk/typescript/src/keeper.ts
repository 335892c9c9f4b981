/**
 * One timer per client looks after all its leases: it renews them, with one call for all that are due, and tells those that are lost.
 *
 *     leases --due after 1/3, or after 1/6 along with another--> POST /v1/renew, up to 1,000 ids --> each confirmed, or lost
 *                                                                   |              ^
 *                                                                   '- ambiguous --' at once at the next node, then with pauses
 *
 * Leases that were acquired at different times are soon renewed together, because each call includes all leases that are at least half as old.
 * An attempt waits for the answer for at most a quarter of the shortest time-to-live in it, so that another node is asked in time. Before that, it
 * may wait as long for a new connection, and with TLS as long again for the handshake. Calls run in parallel: one that hangs delays no other lease.
 *
 * Safety does not depend on it: without it, leases become `unsure` and then `lost` by their clocks alone. It runs on the holder's event loop, so
 * a holder that hangs loses its leases. It keeps the process alive while it has a lease to renew, but for those that are not to.
 */

import { ATTEMPT_MS, Attempts } from "./attempts.js";
import { Bag } from "./bag.js";
import { elapsed, type Moment, now } from "./clock.js";
import type { Cluster } from "./cluster.js";
import type { Held } from "./held.js";
import { lossOf } from "./outcome.js";
import type { Request } from "./server.js";
import { textOf, type Warn } from "./warn.js";
import { type Problem, type RenewalResult, readRenewals } from "./wire.js";

/** The most leases that one request may renew. */
const MAX_BATCH = 1_000;
/** The longest sleep: timers stand still while the machine sleeps. */
const MAX_SLEEP_MS = 1_000;

/** A lease that the keeper looks after. */
export interface Kept {
  readonly held: Held;
  /** Whether it keeps the process alive. */
  isAwake: boolean;
  /** Whether a call for it is under way. */
  inFlight: boolean;
  /** A pause since the last call, which may have been in vain, or so slow that the lease is due again. */
  pause: { readonly since: Moment; readonly ms: number };
}

export class Keeper {
  readonly #cluster: Cluster;
  readonly #warn: Warn;
  readonly #kept = new Bag<Kept>();
  /** How many leases keep the process alive. */
  #awake = 0;
  /** Why leases were not renewed the last time; `undefined` if they were. */
  #refusal: string | undefined;
  #timer: NodeJS.Timeout | undefined;
  #looksAt = Number.POSITIVE_INFINITY;
  /** Renews up to a twelfth of the time earlier, so that clients that began together do not stay together. */
  #jitter = Math.random();

  constructor(cluster: Cluster, warn: Warn) {
    this.#cluster = cluster;
    this.#warn = warn;
    cluster.clock.onJump?.(() => this.#look());
  }

  /** Looks after this lease from now on, until it is lost or removed. */
  add(held: Held, at: Moment = now(this.#cluster.clock)): void {
    const kept = { held, isAwake: held.lifetime.renews, inFlight: false, pause: { since: at, ms: 0 } };
    held.kept = this.#kept.add(kept);
    this.#awake += Number(kept.isAwake);
    this.#lookIn(this.#waitMs(kept, at));
    this.#keepAwake();
  }

  remove(held: Held): void {
    this.unref(held);
    held.kept?.remove();
    held.kept = undefined;
  }

  /** Leaves this lease to another handle of it. Code that waits for its loss learns of it when the lease ends by the clock. */
  leave(leaseId: string): void {
    for (const { held } of this.#kept.values()) {
      if (held.leaseId === leaseId) {
        this.detach(held);
      }
    }
  }

  /** Renews this lease no more, as somebody has its id. It stays here until it ends by the clock. */
  detach(held: Held): void {
    held.lifetime.stopRenewing();
    this.unref(held);
  }

  /** It does not keep the process alive any more. */
  unref(held: Held): void {
    const kept = held.kept?.value;
    if (kept?.isAwake) {
      kept.isAwake = false;
      this.#awake -= 1;
      this.#keepAwake();
    }
  }

  /** Nothing is looked after any more. */
  clear(): void {
    for (const { held } of this.#kept.values()) {
      this.remove(held);
    }
    clearTimeout(this.#timer);
  }

  #keepAwake(): void {
    if (this.#awake > 0) {
      this.#timer?.ref();
    } else {
      this.#timer?.unref();
    }
  }

  #lookIn(ms: number): void {
    const looksAt = performance.now() + ms;
    if (looksAt < this.#looksAt) {
      clearTimeout(this.#timer);
      this.#looksAt = looksAt;
      this.#timer = setTimeout(() => this.#look(), ms);
      this.#keepAwake();
    }
  }

  /** How long there is nothing to do for a lease. Sleeps less than until its end, so that a timer that is late is not too late. */
  #waitMs(kept: Kept, at: Moment): number {
    const { held, inFlight } = kept;
    const leftMs = held.lifetime.remainingMs(at);
    const dueMs = Math.max(this.#dueInMs(held, at), pausesMs(kept, at));
    return Math.min(Math.max(Math.min(leftMs - leftMs / 8, inFlight ? leftMs : dueMs), 1), MAX_SLEEP_MS);
  }

  #dueInMs({ lifetime }: Held, at: Moment): number {
    return lifetime.renewInMs(at) - (lifetime.ttlMs / 12) * this.#jitter;
  }

  #look(): void {
    this.#looksAt = Number.POSITIVE_INFINITY;
    const at = now(this.#cluster.clock);
    for (const { held } of this.#kept.values()) {
      if (held.look(at) !== undefined) {
        this.remove(held);
      }
    }
    const ready = this.#kept.values().filter((kept) => !kept.inFlight && pausesMs(kept, at) <= 0);
    if (ready.some(({ held }) => this.#dueInMs(held, at) <= 0)) {
      const due = ready.filter(({ held }) => this.#dueInMs(held, at) <= held.lifetime.ttlMs / 6);
      this.#jitter = Math.random();
      for (let from = 0; from < due.length; from += MAX_BATCH) {
        void this.#renew(due.slice(from, from + MAX_BATCH));
      }
    }
    let wait = Number.POSITIVE_INFINITY;
    for (const kept of this.#kept.values()) {
      wait = Math.min(wait, this.#waitMs(kept, at));
    }
    if (this.#kept.size > 0) {
      this.#lookIn(wait);
    }
  }

  /** Renews these leases together, until an outcome is definite or none of them is left. Rejects only if the clock throws. */
  async #renew(all: Kept[]): Promise<void> {
    for (const kept of all) {
      kept.inFlight = true;
    }
    let pauseMs = 0;
    try {
      pauseMs = await this.#renewAll(all);
    } catch (error) {
      if (this.#cluster.stop.isStopped) {
        return;
      }
      this.#say(textOf(error));
    } finally {
      const since = now(this.#cluster.clock);
      for (const kept of all) {
        kept.inFlight = false;
        kept.pause = { since, ms: Math.max(Math.min(kept.held.lifetime.ttlMs / 12, MAX_SLEEP_MS), pauseMs) };
      }
    }
    this.#look();
  }

  /** Returns how long the cluster asks to wait before the next renewal. */
  async #renewAll(all: Kept[]): Promise<number> {
    const ttlMs = Math.min(...all.map(({ held }) => held.lifetime.ttlMs));
    const timeMs = Math.min(ttlMs / 4, ATTEMPT_MS);
    const attempts = new Attempts(this.#cluster.nodes, this.#cluster.stop);
    attempts.longestPauseMs = timeMs / 2;
    attempts.keepsAlive = false;
    for (;;) {
      const at = now(this.#cluster.clock);
      const live = all.filter(({ held }) => held.kept !== undefined && held.look(at) === undefined);
      if (live.length === 0) {
        return 0;
      }
      const leaseIds = live.map(({ held }) => held.leaseId);
      const request: Request = { method: "POST", path: "/v1/renew", body: { lease_ids: leaseIds }, isApart: "renewal" };
      const outcome = await attempts.attempt(request, timeMs, (json) => readRenewals(json, leaseIds));
      if (outcome.is === "done") {
        const learnt = now(this.#cluster.clock);
        live.forEach(({ held }, index) => {
          learn(held, outcome.response.sent, outcome.value[index], learnt);
        });
        this.#tell(outcome.value);
        return 0;
      }
      const why = "problem" in outcome ? outcome.problem.detail : outcome.why;
      for (const { held } of live) {
        held.failed(why);
      }
      if (outcome.is === "limited") {
        return Math.min(outcome.retryAfterMs, ttlMs / 6);
      }
      if (outcome.is === "refused") {
        this.#tell([outcome]);
        return 0;
      }
    }
  }

  /** Warns of what the cluster refuses, which no holder would learn of before its lease is lost. Once, until it renews again. */
  #tell(results: readonly (RenewalResult | { readonly problem: Problem })[]): void {
    const refused = results.flatMap((result) => ("problem" in result ? [result.problem] : []));
    const problem = refused.find((problem) => lossOf(problem) === undefined);
    this.#say(problem?.detail);
  }

  #say(why: string | undefined): void {
    if (why !== undefined && why !== this.#refusal) {
      this.#warn("RINGFENCE_RENEWAL", `leases are not renewed: ${why}`);
    }
    this.#refusal = why;
  }
}

/** How much of its pause is left. */
function pausesMs({ pause }: Kept, at: Moment): number {
  return pause.ms - elapsed(pause.since, at);
}

/** Learns the result of one lease. A renewal that failed for now is repeated after a pause. */
function learn(held: Held, sent: Moment, result: RenewalResult | undefined, at: Moment): void {
  if (result === undefined) {
    return;
  }
  if ("grant" in result) {
    held.confirm({ grant: result.grant, sent }, at);
    return;
  }
  const loss = lossOf(result.problem);
  if (loss === undefined) {
    held.failed(result.problem.detail);
  } else {
    held.lose(loss, at);
  }
}
