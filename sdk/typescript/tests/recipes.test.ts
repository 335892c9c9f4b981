/** The recipes of docs/recipes.md. The function between the rules is the one that it shows. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { type Client, type FencingHeaders, LostError } from "../src/index.js";
import { Cluster } from "./support/cluster.js";
import { ringfence } from "./support/program.js";

// ---
/** Throws a `LostError` if the lease was lost: then another machine may have run the job at the same time. */
async function job(
  client: Client,
  store: (part: string, headers: FencingHeaders, signal: AbortSignal) => Promise<void>,
) {
  await client.using("reports/nightly", { wait: 10_000, holdAtLeast: 50_000 }, async (lease, signal) => {
    for (const part of ["sums", "charts"]) {
      await store(part, lease.headers(), signal);
    }
  });
}
// ---

const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");
const RECIPES = read("../../../../docs/recipes.md");

async function revoke(cluster: Cluster, token: string | undefined): Promise<void> {
  const env = { ...process.env, RINGFENCE_URLS: cluster.urls.join() };
  await promisify(execFile)(ringfence(), ["revoke", "reports/nightly", String(token)], { env });
}

test("the document shows what is tested", () => {
  const [, shown] = RECIPES.split("```ts\n");
  const [, tested] = read("../../tests/recipes.test.ts").split("// ---\n");
  assert.equal(shown?.split("```")[0], tested);
});

test("a quick job runs on one machine, and one that loses the lease ends with an error", async () => {
  await using cluster = await Cluster.start();
  const client = cluster.client();
  const stored: string[] = [];
  let token: string | undefined;
  await job(client, async (part, headers) => {
    stored.push(part);
    token = headers["Ringfence-Token"];
  });
  assert.deepEqual(stored, ["sums", "charts"]);
  assert.equal((await cluster.key("reports/nightly")).holders, 1);
  await revoke(cluster, token);

  const losing = job(client, async (_, headers, signal) => {
    await revoke(cluster, headers["Ringfence-Token"]);
    await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  });
  await assert.rejects(losing, LostError);
  await client.close();
});

test("another client goes on with a lease that was left", async () => {
  await using cluster = await Cluster.start();
  const [other, client] = [cluster.client(), cluster.client()];
  const lease = await other.acquire("imports/42");
  const { token } = lease;
  // As the document shows it.
  const leaseId = lease.detach();
  {
    const lease = await client.adopt(leaseId);
    assert.equal(lease.token, token);
    await lease.release();
  }
  const [, cells] = RECIPES.split("| TypeScript | ");
  assert.match(
    cells ?? "",
    /^`const leaseId = lease\.detach\(\);` \| `const lease = await client\.adopt\(leaseId\);` \|\n/,
  );
  await Promise.all([other.close(), client.close()]);
});
