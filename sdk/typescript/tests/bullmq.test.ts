/** Jobs of the real BullMQ, on a real Redis, under leases of a real node. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { type Job, Queue, Worker } from "bullmq";
import { fenced } from "../src/bullmq.js";
import type { Client, Lease } from "../src/index.js";
import { FakeCluster } from "../src/testing.js";
import { Cluster } from "./support/cluster.js";
import { Redis } from "./support/redis.js";
import { until } from "./support/until.js";

type Data = { readonly id: number };
type Work = (job: Job<Data, number>, lease: Lease, signal: AbortSignal) => Promise<number>;
const keys = ({ data }: Job<Data, number>) => `reports/${data.id}`;

/** A queue, and so many workers that each have a client of their own. */
async function stand(
  cluster: Cluster,
  redis: Redis,
  workers: number,
  work: Work,
  options: object = {},
  more: object = {},
) {
  const connection = { host: redis.host, port: redis.port, maxRetriesPerRequest: null };
  const queue = new Queue<Data, number>(`q${Math.random()}`, { connection });
  const all: { client: Client; worker: Worker<Data, number> }[] = [];
  for (let n = 0; n < workers; n += 1) {
    const client = cluster.client();
    const process = fenced<Data, number>(client, keys, work, options);
    all.push({
      client,
      worker: new Worker<Data, number>(queue.name, process, { connection, concurrency: 4, ...more }),
    });
  }
  const close = async () => {
    for (const { client, worker } of all) {
      await client.close();
      await worker.close();
    }
    await queue.close();
  };
  return { queue, [Symbol.asyncDispose]: close };
}

test("jobs for one key run one at a time, each with a larger token", async () => {
  await using cluster = await Cluster.start(1);
  await using redis = await Redis.start();
  const tokens: number[] = [];
  let running = 0;
  const work: Work = async (_, lease) => {
    running += 1;
    assert.equal(running, 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
    running -= 1;
    tokens.push(lease.token);
    return lease.token;
  };
  await using all = await stand(cluster, redis, 2, work);
  const { queue } = all;
  await queue.addBulk(Array.from({ length: 12 }, (_, n) => ({ name: `${n}`, data: { id: 1 } })));
  await until("all are done", async () => (await queue.getCompletedCount()) === 12);
  assert.deepEqual(
    tokens,
    tokens.toSorted((a, b) => a - b),
  );
  assert.equal(new Set(tokens).size, 12);
});

test("a job whose lease is lost is stopped, fails, and is tried again", async () => {
  await using cluster = await Cluster.start(1);
  await using redis = await Redis.start();
  const told: string[] = [];
  const work: Work = async (job, lease, signal) => {
    told.push(`attempt ${job.attemptsStarted}`);
    if (job.attemptsStarted === 1) {
      const body = JSON.stringify({ key: "reports/1", token: lease.token });
      await fetch(`${cluster.urls[0]}/v1/revoke`, { method: "POST", body });
      await once(signal, "abort");
      told.push(`stops, ${lease.reason}`);
    }
    return lease.token;
  };
  await using all = await stand(cluster, redis, 1, work, { ttl: 3_000 });
  const { queue } = all;
  const job = await queue.add("report", { id: 1 }, { attempts: 2 });
  await until("it is done", () => job.isCompleted());
  assert.deepEqual(told, ["attempt 1", "stops, revoked", "attempt 2"]);
  const [failed] = (await queue.getJob(job.id ?? ""))?.stacktrace ?? [];
  assert.match(failed ?? "", /^LostError: the lease is lost: an operator revoked it/);
});

test("a job comes back later if its key is held, and counts no attempt", async () => {
  await using cluster = await Cluster.start(1);
  await using redis = await Redis.start();
  await using client = cluster.client();
  const held = await client.acquire("reports/1");
  await using all = await stand(cluster, redis, 1, async (_, lease) => lease.token, { delay: 200 });
  const { queue } = all;
  const job = await queue.add("report", { id: 1 });
  await until("it is delayed", () => job.isDelayed());
  const other = await queue.add("report", { id: 2 });
  await until("others go on", () => other.isCompleted());
  await held.release();
  await until("it is done", () => job.isCompleted());
  const done = await queue.getJob(job.id ?? "");
  assert.ok((done?.returnvalue ?? 0) > held.token);
  assert.equal(done?.attemptsMade, 1);
});

test("a job that has stalled runs again once its first run has ended", async () => {
  await using cluster = await Cluster.start(1);
  await using redis = await Redis.start();
  const told: string[] = [];
  const tokens: number[] = [];
  const work: Work = async (_, lease) => {
    tokens.push(lease.token);
    const run = tokens.length;
    told.push(`run ${run} begins`);
    if (run === 1) {
      // The second run has begun, and waits for the key.
      await until("it is waited for", async () => (await cluster.key("reports/1")).waiters >= 1);
    }
    told.push(`run ${run} ends`);
    return lease.token;
  };
  // Nothing renews the lock of a job, and who looks for it finds it gone.
  const lock = { lockDuration: 100, skipLockRenewal: true, stalledInterval: 200, maxStalledCount: 5 };
  await using all = await stand(cluster, redis, 2, work, {}, lock);
  await all.queue.add("report", { id: 1 });
  await until("both have ended", () => told.length >= 4);
  assert.deepEqual(told.slice(0, 4), ["run 1 begins", "run 1 ends", "run 2 begins", "run 2 ends"]);
  assert.ok((tokens[1] ?? 0) > (tokens[0] ?? 0));
});

test("whatever a job throws is passed on", async () => {
  await using cluster = await FakeCluster.start();
  for (const thrown of [undefined, null, "text"]) {
    const process = fenced<Data, number>(cluster.client(), keys, () => Promise.reject(thrown), { delay: 1 });
    const [result] = await Promise.allSettled([process({ data: { id: 1 } } as Job<Data, number>)]);
    assert.deepEqual(result, { status: "rejected", reason: thrown });
  }
});
