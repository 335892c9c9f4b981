/**
 * How a lease is given back, whoever does it first: its holder, the end of a block, `close`, or the collector that found the handle dropped.
 *
 *  released            hold-at-least is over
 *     |                     |
 *     '-- or at once --> DELETE
 *     |
 *     '-- hold-at-least --> one renewal for what is left of it --> nothing renews it; DELETE once the time is over
 *                            '-- not now: it is renewed as before, until the one renewal succeeds, or the time is over
 *
 * The one renewal keeps others out even if this process ends. Until it is confirmed, only renewals do, so these go on.
 *
 * Nothing here refers to the handle, so that it can be collected. If somebody asked for its signal or for `lost`, the lease outlives it: who waits
 * for those may still work.
 */
import type { Bag, Link } from "./bag.js";
import { elapsed, type Moment, now } from "./clock.js";
import type { Cluster } from "./cluster.js";
import { LostError } from "./errors.js";
import type { Held } from "./held.js";
import type { Keeper } from "./keeper.js";
import { MIN_TTL_MS } from "./options.js";
import { sleep } from "./timers.js";
import { named, type Warn } from "./warn.js";

/** The pause after a renewal for what is left of hold-at-least that was refused. */
const PAUSE_MS = 1_000;

/** What leases share. */
export interface Owner {
  readonly cluster: Cluster;
  readonly keeper: Keeper;
  readonly warn: Warn;
  /** Those that are to be released. */
  readonly leases: Bag<Release>;
}

const DROPPED = new FinalizationRegistry<Release>((release) => release.drop());

export class Release {
  readonly held: Held;
  readonly #owner: Owner;
  readonly #link: Link<Release>;
  /** When the grant was known here, which is not before it was made. */
  readonly #granted: Moment;
  readonly #holdAtLeastMs: number;
  #end: Promise<void> | undefined;
  /** Whether somebody may wait for the loss, with nothing but the lease's signal or `lost`. */
  #isAwaited = false;
  /** Whether the client took it from its holder. */
  #isTaken = false;

  constructor(held: Held, owner: Owner, holdAtLeastMs: number, granted: Moment) {
    this.held = held;
    this.#owner = owner;
    this.#granted = granted;
    this.#holdAtLeastMs = holdAtLeastMs;
    this.#link = owner.leases.add(this);
  }

  /** Whether it was released by `close`, and not by its holder. */
  get isTaken(): boolean {
    return this.#isTaken;
  }

  /** Releases the lease once this handle is collected. */
  watch(handle: object): void {
    DROPPED.register(handle, this, this);
  }

  /** Somebody may wait for the loss from now on. */
  awaited(): void {
    this.#isAwaited = true;
  }

  /** Releases it, once: a repeat has the same result. */
  release(): Promise<void> {
    if (this.#end === undefined) {
      const { cluster } = this.#owner;
      const { leaseId, keys } = this.held;
      const end = this.#release();
      this.#ended(end);
      cluster.background(end, { leaseId, keys });
    }
    return this.#end as Promise<void>;
  }

  /** Releases it in the name of the client. */
  take(): void {
    this.#isTaken ||= this.#end === undefined;
    // Its outcome is among those that `close` waits for.
    void this.release().catch(() => undefined);
  }

  /** The handle is gone. */
  drop(): void {
    if (this.#end !== undefined) {
      return;
    }
    const { keys, token } = this.held.grant;
    if (this.held.look() === undefined) {
      const names = named(keys.map(({ key }) => key));
      const next = this.#isAwaited
        ? "its signal or its loss was asked for, so it is kept until the client is closed; nothing else releases it"
        : "it is released now";
      this.#owner.warn("RINGFENCE_DROPPED", `the lease of ${names} with token ${token} was dropped: ${next}`);
      if (this.#isAwaited) {
        void this.held.lost.then(() => this.take());
        return;
      }
    }
    this.take();
  }

  /** Leaves it to its id. */
  detach(): void {
    this.#ended(Promise.resolve());
    this.#owner.keeper.detach(this.held);
  }

  #ended(end: Promise<void>): void {
    this.#end = end;
    this.#link.remove();
    DROPPED.unregister(this);
  }

  async #release(): Promise<void> {
    const { cluster, keeper } = this.#owner;
    const at = now(cluster.clock);
    const { held } = this;
    const loss = held.look(at);
    const isKept = this.#leftMs(at) > 0 && (loss === undefined || loss === "max-hold");
    const successor = isKept ? held.successor() : undefined;
    keeper.remove(held);
    held.lose("released", at);
    try {
      await (successor === undefined ? cluster.release(held.leaseId) : this.#outlive(successor));
    } catch (error) {
      if (successor === undefined && !(error instanceof LostError)) {
        cluster.releaseInBackground(held.leaseId, held.keys);
      }
      if (loss === undefined) {
        throw error;
      }
    }
    if (loss !== undefined) {
      throw new LostError(loss);
    }
  }

  /** Sees to it that the keys stay taken for the rest of hold-at-least. */
  async #outlive(held: Held): Promise<void> {
    const { cluster, keeper } = this.#owner;
    keeper.add(held);
    try {
      await this.#keep(held);
    } catch (error) {
      if (!(error instanceof LostError)) {
        cluster.background(this.#keepLater(held), held);
      }
      throw error;
    }
  }

  /** The one renewal. */
  async #keep(held: Held): Promise<void> {
    const { cluster, keeper } = this.#owner;
    try {
      await cluster.renew(held.leaseId, Math.max(Math.ceil(this.#leftMs()), MIN_TTL_MS), cluster.stop);
    } catch (error) {
      if (error instanceof LostError) {
        keeper.remove(held);
      }
      throw error;
    }
    keeper.remove(held);
    setTimeout(() => cluster.releaseInBackground(held.leaseId, held.keys), this.#leftMs()).unref();
  }

  async #keepLater(held: Held): Promise<void> {
    const { cluster, keeper } = this.#owner;
    while (this.#leftMs() > 0) {
      await sleep(Math.min(PAUSE_MS, this.#leftMs()), cluster.stop);
      try {
        await this.#keep(held);
        return;
      } catch (error) {
        if (error instanceof LostError) {
          return;
        }
        cluster.stop.throwIfStopped();
      }
    }
    keeper.remove(held);
    cluster.releaseInBackground(held.leaseId, held.keys);
  }

  #leftMs(at: Moment = now(this.#owner.cluster.clock)): number {
    return Math.max(this.#holdAtLeastMs - elapsed(this.#granted, at), 0);
  }
}
