/** The coordinator in the real `node-cron`, against a real node. */
import assert from "node:assert/strict";
import { test } from "node:test";
import cron from "node-cron";
import { cronCoordinator } from "../src/node-cron.js";
import { Cluster } from "./support/cluster.js";
import { until } from "./support/until.js";

test("of two programs with the same task, one runs it each time", async () => {
  await using cluster = await Cluster.start(1);
  const runs: { program: number; at: string; token: number | undefined; state: string | undefined }[] = [];
  let skipped = 0;
  const programs = [1, 2].map((program) => {
    const client = cluster.client();
    const coordinator = cronCoordinator(client, { holder: `program-${program}` });
    const task = cron.schedule(
      "* * * * * *",
      (context) => {
        const lease = coordinator.lease(context);
        runs.push({ program, at: context.date.toISOString(), token: lease?.token, state: lease?.state });
      },
      { name: "every second", distributed: true, runCoordinator: coordinator, distributedLease: 10_000 },
    );
    task.on("execution:skipped", () => {
      skipped += 1;
    });
    return { client, task };
  });
  await until("four runs, and as many that were left to the other", () => runs.length >= 4 && skipped >= 4);
  for (const { task } of programs) {
    await task.destroy();
  }
  assert.equal(new Set(runs.map(({ at }) => at)).size, runs.length, "each time has one run");
  assert.deepEqual([...new Set(runs.map(({ state }) => state))], ["held"]);
  const tokens = runs.map(({ token }) => token ?? 0);
  assert.equal(new Set(tokens).size, runs.length);
  for (const { client } of programs) {
    await client.close();
  }
});

test("a run that has ended is not run again by a program that is late", async () => {
  await using cluster = await Cluster.start(1);
  await using client = cluster.client();
  const first = cronCoordinator(client);
  const late = cronCoordinator(client);
  const key = `nightly:${new Date(0).toISOString()}`;
  assert.equal(await first.shouldRun(key, 30_000), true);
  assert.equal(first.lease({ date: new Date(0), task: { name: "nightly", id: "x" } })?.state, "held");
  await first.onComplete(key);
  assert.equal(await late.shouldRun(key, 30_000), false);
  assert.equal(late.lease({ date: new Date(0), task: { name: "nightly", id: "x" } }), undefined);
});
