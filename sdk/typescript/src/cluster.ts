/** Calls to the cluster, as a client and its leases share them. */
import { Attempts, RETRY_MS } from "./attempts.js";
import { Bag } from "./bag.js";
import type { Clock } from "./clock.js";
import { LostError } from "./errors.js";
import type { Confirmation } from "./lifetime.js";
import type { Nodes } from "./nodes.js";
import type { Request } from "./server.js";
import { Stop } from "./stop.js";
import { type KeyView, readGrant, readKey } from "./wire.js";

/** How long a release is repeated in the background. */
const RELEASE_MS = 30_000;

/** A lease, as it is named when it is not given back. */
export interface Named {
  readonly leaseId: string;
  readonly keys: readonly string[];
}

/** The cluster, as a client and its leases share it. */
export class Cluster {
  readonly nodes: Nodes;
  readonly clock: Clock;
  /** Stops what goes on in the background. */
  readonly stop = new Stop();
  /** What goes on in the background, and for which lease. */
  readonly #background = new Bag<{ readonly done: Promise<void>; readonly lease: Named }>();
  /** Those of which the last call failed while the client was being closed. */
  #failed: Map<string, Named> | undefined;

  constructor(nodes: Nodes, clock: Clock) {
    this.nodes = nodes;
    this.clock = clock;
  }

  /** Renews a lease by its id. */
  async renew(leaseId: string, ttlMs?: number, stop?: Stop, isHeld = true): Promise<Confirmation> {
    const body = ttlMs === undefined ? {} : { ttl_ms: ttlMs };
    const operation = { renew: { lease_id: leaseId, ...body } };
    const request: Request = { method: "POST", path: `/v1/leases/${leaseId}/renew`, body, operation };
    const read = (json: unknown) => readGrant(json, leaseId);
    const { value, response } = await new Attempts(this.nodes, stop).call(request, leaseId, RETRY_MS, read, isHeld);
    return { grant: value, sent: response.sent };
  }

  /** Who has a key. */
  async view(key: string, stop?: Stop): Promise<KeyView> {
    const path = `/v1/keys/${encodeURIComponent(key).replaceAll("%2F", "/")}`;
    const attempts = new Attempts(this.nodes, stop);
    attempts.onlyReads = true;
    const { value } = await attempts.call({ method: "GET", path }, "", RETRY_MS, (json) => readKey(json, key), false);
    return value;
  }

  /** Releases a lease, or leaves the queue. It also succeeds if there is no such lease. Only the end of the client stops it. */
  async release(leaseId: string, withinMs = RETRY_MS): Promise<void> {
    const operation = { release: { lease_id: leaseId } };
    const request: Request = { method: "DELETE", path: `/v1/leases/${leaseId}`, operation };
    const read = (_: unknown, status: number) => {
      if (status !== 204) {
        throw new TypeError("expected 204");
      }
    };
    await new Attempts(this.nodes, this.stop).call(request, leaseId, withinMs, read);
  }

  /** Releases a lease, best effort, with nobody to tell. Keeps the process alive meanwhile. */
  releaseInBackground(leaseId: string, keys: readonly string[]): void {
    this.background(this.release(leaseId, RELEASE_MS), { leaseId, keys });
  }

  /** Work that gives back a lease, and that the client waits for when it is closed. Its failure is of no other consequence. */
  background(work: Promise<void>, lease: Named): void {
    const ended = (hasFailed: boolean) => {
      link.remove();
      if (hasFailed) {
        this.#failed?.set(lease.leaseId, lease);
      } else {
        this.#failed?.delete(lease.leaseId);
      }
    };
    const done: Promise<void> = work.then(
      () => ended(false),
      (error) => ended(!(error instanceof LostError)),
    );
    const link = this.#background.add({ done, lease });
  }

  /**
   * Waits for `work`, which gives back what is held, and for all work in the background, but not longer than until `end`. Returns the leases that
   * were not given back, as far as is known.
   */
  async settled(work: () => Promise<unknown>, end: Promise<void>): Promise<Named[]> {
    let isOver = false;
    void end.then(() => {
      isOver = true;
    });
    this.#failed = new Map();
    await Promise.race([work(), end]);
    while (this.#background.size > 0 && !isOver) {
      await Promise.race([Promise.all(this.#background.values().map(({ done }) => done)), end]);
    }
    const left = new Map(this.#failed);
    for (const { lease } of this.#background.values()) {
      left.set(lease.leaseId, lease);
    }
    return [...left.values()];
  }
}
