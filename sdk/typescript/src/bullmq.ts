/**
 * Jobs of BullMQ under a lease.
 *
 * ```ts
 * const process = fenced(client, (job) => `reports/${job.data.id}`, async (job, lease, signal) => { … });
 * new Worker("reports", process, { connection });
 * ```
 *
 * BullMQ runs a job again once its own lock has not been renewed in time, while the first run may go on. The lease keeps the second run out until the
 * first has ended or lost it, and storage that sees the token rejects the first one's late writes. A job whose lease is lost is told by the
 * signal, and fails, so that BullMQ tries it again if it has attempts left.
 */
import type { Job } from "bullmq";
import type { Client } from "./client.js";
import type { RingfenceError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { Keys, LockOptions } from "./options.js";

/** How to hold the keys of a job. */
export interface FencedOptions extends Omit<LockOptions, "signal"> {
  /**
   * If the lease is not granted within `wait`, by default at once, the job comes back after this time, in milliseconds, and counts no attempt. By
   * default, it waits, and keeps one of the places of its worker.
   */
  delay?: number;
}

/** The processor of a worker. Each job works under a lease of its own, and is stopped by the signal if that is lost, or if BullMQ cancels the job. */
export function fenced<Data, Result>(
  client: Client,
  keys: (job: Job<Data, Result>) => Keys,
  work: (job: Job<Data, Result>, lease: Lease, signal: AbortSignal) => Result | Promise<Result>,
  options: FencedOptions = {},
): (job: Job<Data, Result>, token?: string, stop?: AbortSignal) => Promise<Result> {
  const { delay, ...lock } = options;
  const usual = { holder: `bullmq pid ${process.pid}`, ...(delay === undefined ? {} : { wait: 0 }), ...lock };
  return async (job, token, stop) => {
    let isWorking = false;
    const body = async (lease: Lease, lost: AbortSignal) => {
      isWorking = true;
      return await work(job, lease, stop === undefined ? lost : AbortSignal.any([lost, stop]));
    };
    try {
      return await client.using(keys(job), { ...usual, ...(stop === undefined ? {} : { signal: stop }) }, body);
    } catch (error) {
      const kind = (error as Partial<RingfenceError> | null | undefined)?.kind;
      if (delay === undefined || isWorking || (kind !== "Held" && kind !== "TimedOut")) {
        throw error;
      }
      const { DelayedError } = await import("bullmq");
      await job.moveToDelayed(Date.now() + delay, token);
      throw new DelayedError();
    }
  };
}
