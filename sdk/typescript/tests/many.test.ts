/** Many leases in one client, against a played server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../src/index.js";
import { Played, type Received } from "./support/played.js";
import { until } from "./support/until.js";

test("a thousand leases are renewed by one call a round, and more by several", async () => {
  await using played = await Played.start(() => undefined);
  await using it = new Client({ urls: [played.url] });
  const acquire = (n: number) => it.acquire(`k${n}`, { ttl: 40_000 });
  const leases = await Promise.all(Array.from({ length: 1_000 }, (_, n) => acquire(n)));
  const renewals = () => played.received.filter(({ path }) => path === "/v1/renew");
  const sizes = () => renewals().map(({ body }: Received) => body.lease_ids.length as number);
  // Those that were acquired early are due first, and take the others along.
  await until("all are renewed together", () => sizes().includes(1_000));
  assert.ok(sizes().length <= 3, `${sizes()}`);
  assert.deepEqual([...new Set(leases.map(({ state }) => state))], ["held"]);
  leases.push(await acquire(1_000));
  await until("all are renewed", () => {
    const [last, before] = sizes().reverse();
    return (last ?? 0) + (before ?? 0) === 1_001;
  });
  assert.ok(sizes().every((size) => size <= 1_000));
  await Promise.all(leases.map((lease) => lease.release()));
  assert.ok(played.connections <= 200, `${played.connections} connections`);
});
