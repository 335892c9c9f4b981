/**
 * A coordinator for `node-cron` (4 or later): of all programs that have the same task, one runs it each time.
 *
 * ```ts
 * const coordinator = cronCoordinator(client);
 * cron.schedule("0 3 * * *", (context) => backup(coordinator.lease(context)?.token), {
 *   name: "nightly-backup", distributed: true, runCoordinator: coordinator,
 * });
 * ```
 *
 * Each run has a key of its own, with the task's name and the time. It stays taken for the task's `distributedLease` (30 s by default), or for
 * as long as the run takes: choose it longer than the clocks of the programs differ.
 */
import type { Client } from "./client.js";
import type { Lease } from "./lease.js";
import type { LockOptions } from "./options.js";

/** What `node-cron` tells a task of its run. */
export interface CronContext {
  readonly date: Date;
  readonly task?: { readonly name?: string; readonly id: string } | undefined;
}

/** `node-cron`'s `RunCoordinator`, which also has the lease of each run. */
export interface CronCoordinator {
  shouldRun(key: string, ttlMs: number): Promise<boolean>;
  onComplete(key: string): Promise<void>;
  /** The lease of a run, with its token and its signal; `undefined` if the run has none. */
  lease(context: CronContext): Lease | undefined;
}

/** The shortest time-to-live: a shorter one would not survive a change of the leader. */
const MIN_TTL_MS = 5_000;

/** Makes a coordinator. Its keys begin with `prefix`, by default `cron/`. */
export function cronCoordinator(
  client: Client,
  options: Omit<LockOptions, "wait" | "holdAtLeast"> & { prefix?: string } = {},
): CronCoordinator {
  const { prefix = "cron/", ...lock } = options;
  const leases = new Map<string, Lease>();
  return {
    async shouldRun(key, ttlMs) {
      const ttl = lock.ttl ?? Math.max(ttlMs, MIN_TTL_MS);
      const lease = await client.tryAcquire(prefix + key, { ...lock, ttl, holdAtLeast: ttlMs });
      if (lease === undefined) {
        return false;
      }
      leases.set(key, lease);
      return true;
    },
    async onComplete(key) {
      const lease = leases.get(key);
      leases.delete(key);
      await lease?.release();
    },
    lease({ date, task }) {
      return leases.get(`${task?.name ?? task?.id}:${date.toISOString()}`);
    },
  };
}
