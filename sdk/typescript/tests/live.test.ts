/** Against real nodes. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { HeldError, type Lease, LostError, TimedOutError } from "../src/index.js";
import { Adapter } from "./support/adapter.js";
import { Cluster } from "./support/cluster.js";
import { failure, until } from "./support/until.js";
import { Way } from "./support/way.js";

describe("live", { concurrency: 1 }, () => {
  test("keys are held alone, shared, in part and together, first come first served", async () => {
    await using cluster = await Cluster.start();
    await using client = cluster.client();
    await using other = cluster.client();

    const alone = await client.acquire("alone", { holder: "one", metadata: { on: "here" } });
    const held = await failure(other.acquire("alone", { wait: 0 }), HeldError);
    assert.deepEqual([held.holders[0]?.holder, held.holders[0]?.token], ["one", alone.token]);
    assert.equal(await other.tryAcquire("alone"), undefined);
    await failure(other.acquire("alone", { wait: 200 }), TimedOutError);

    const order: string[] = [];
    const waits = async (name: string, waiters: number) => {
      const work = other.using("alone", () => order.push(name));
      await until(`${name} waits`, async () => (await cluster.key("alone")).waiters === waiters);
      return { work };
    };
    const [first, second] = [await waits("first", 1), await waits("second", 2)];
    await alone.release();
    await Promise.all([first.work, second.work]);
    assert.deepEqual(order, ["first", "second"]);

    const readers = [
      await client.acquire("read", { shared: true }),
      await other.acquire({ key: "read", shared: true }),
    ];
    assert.equal(await client.tryAcquire("read"), undefined);
    assert.equal(readers[1]?.fence(), readers[0]?.token, "the oldest holder is the fence");
    await readers[0]?.release();
    await readers[1]?.renew();
    assert.equal(readers[1]?.fence("read"), readers[1]?.token);
    await readers[1]?.release();

    const seats = await Promise.all([1, 2].map(() => client.acquire("seats", { limit: 2 })));
    assert.equal(await client.tryAcquire("seats", { limit: 2 }), undefined);
    await Promise.all(seats.map((lease) => lease.release()));

    const both = await client.acquire(["x", { key: "y", shared: true }]);
    assert.deepEqual(both.keys, ["x", "y"]);
    assert.equal(await other.tryAcquire("x"), undefined);
    await both.release();

    const controller = new AbortController();
    const holder = await client.acquire("queue");
    const cancelled = failure(other.acquire("queue", { signal: controller.signal }), DOMException);
    await until("it waits", async () => (await cluster.key("queue")).waiters === 1);
    controller.abort();
    await cancelled;
    await until("its place is given up", async () => (await cluster.key("queue")).waiters === 0);
    await holder.release();

    const least = await client.acquire("least", { ttl: 1_000, holdAtLeast: 4_000 });
    await least.release();
    assert.equal(await other.tryAcquire("least"), undefined, "it is held for longer");
    const after = await other.acquire("least");
    assert.ok(after.token > least.token);
    await after.release();
  });

  test("a thousand leases live on through the death of the leader, and of all nodes", async () => {
    await using cluster = await Cluster.start();
    await using client = cluster.client();
    const leases = await Promise.all(
      Array.from({ length: 1_000 }, (_, n) => client.acquire(`many/${n}`, { ttl: 60_000 })),
    );
    const waiter = client.acquire("many/0", { ttl: 60_000 });
    await until("it waits", async () => (await cluster.key("many/0")).waiters === 1);

    const leader = await until("a leader", () => cluster.leader());
    await leader.program.kill();
    await until("another leader", () => cluster.leader());
    await Promise.all(leases.slice(0, 3).map((lease) => lease.renew()));
    await Promise.all(cluster.nodes.map(({ program }) => program.kill()));
    await cluster.startAll();

    // Each renewed by itself since all died.
    const remaining = leases.map((lease) => lease.remaining);
    await until("all are renewed", () => leases.every((lease, n) => lease.remaining > (remaining[n] ?? 0)));
    assert.ok(leases.every(({ state }) => state === "held"));
    assert.ok((await cluster.metric("ringfence_http_requests_total", "/v1/renew")) < 50, "and not one by one");
    await Promise.all(leases.map((lease) => lease.release()));
    const next = await waiter;
    assert.ok(next.token > Math.max(...leases.map(({ token }) => token)), "the place survived, too");
    await next.release();
  });

  test("a hundred waits of one client keep their places in order, also those without a connection", async () => {
    await using cluster = await Cluster.start(1);
    await using client = cluster.client();
    const held = await client.acquire("key");
    const order: number[] = [];
    const all = Array.from({ length: 100 }, (_, n) => client.using("key", () => order.push(n)));
    await until("all wait", async () => (await cluster.key("key")).waiters === 100);
    // A place is kept for 5 s after it was asked for.
    const asked = () => cluster.metric("ringfence_http_requests_total", "/v1/batch");
    await until("places were asked for again", async () => (await asked()) >= 10);
    assert.equal((await cluster.key("key")).waiters, 100);
    await held.release();
    await Promise.all(all);
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
    );
    assert.equal(order.length, 100);
  });

  test("a node that hangs is passed over, by renewals and by those who wait", async () => {
    await using cluster = await Cluster.start();
    const leader = await until("a leader", () => cluster.leader());
    // The client begins at the leader.
    const urls = [leader.url, ...cluster.urls.filter((url) => url !== leader.url)];
    await using client = cluster.client({ urls });
    await using rival = cluster.client({ urls: urls.slice(1) });
    const held = await rival.acquire("key", { ttl: 60_000 });
    const kept = await client.acquire("kept", { ttl: 12_000 });
    const waits = client.acquire("key");
    await until("it waits", async () => (await cluster.key("key")).waiters === 1);
    leader.program.signal("SIGSTOP");
    await held.release();
    const lease = await waits;
    assert.ok(lease.token > held.token);
    await kept.renew();
    assert.notEqual(kept.state, "lost");
    leader.program.signal("SIGCONT");
    await Promise.all([lease.release(), kept.release()]);
  });

  test("a holder that is cut off stops before another client has the lease", async () => {
    await using cluster = await Cluster.start(1);
    await using way = await Way.start(cluster.urls[0] ?? "");
    await using rival = cluster.client();
    const order: string[] = [];
    const cutOff = cluster.client({ urls: [way.url] });
    const lost = failure(
      cutOff.using("key", { ttl: 4_000 }, async (lease, signal) => {
        way.cut();
        order.push("works");
        void rival.acquire("key").then((next) => {
          order.push(`is held with ${next.token > lease.token ? "a larger token" : "the same"}`);
          return next.release();
        });
        await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
        order.push(`stops, ${lease.state}`);
      }),
      LostError,
    );
    assert.equal((await lost).reason, "unconfirmed");
    await until("the other one has had it", () => order.length === 3);
    assert.deepEqual(order, ["works", "stops, lost", "is held with a larger token"]);
  });

  test("a process that was stopped past the end knows at its first look", async () => {
    await using cluster = await Cluster.start(1);
    await using adapter = new Adapter();
    await adapter.ok("open", { client: "C", urls: cluster.urls, clock: "real" });
    const { token } = await adapter.ok("acquire", {
      client: "C",
      lease: "L",
      keys: ["key"],
      ttl_ms: 2_000,
      wait_ms: 0,
    });
    adapter.child.kill("SIGSTOP");
    await using client = cluster.client();
    const next = await client.acquire("key");
    assert.ok(next.token > token);
    adapter.child.kill("SIGCONT");
    const look = await adapter.ok("state", { lease: "L" });
    assert.deepEqual([look.state, look.remaining_ms, look.reason], ["lost", 0, "unconfirmed"]);
    await until("it was told", () => adapter.events.some(({ event, lease }) => event === "lost" && lease === "L"));
    const release = await adapter.call("release", { lease: "L" });
    assert.deepEqual([release.error.kind, release.error.reason], ["Lost", "unconfirmed"]);
    assert.equal(next.state, "held", "it was not released by the first one");
    await next.release();
    assert.equal(adapter.stderr, "");
  });

  test("a process whose event loop is blocked loses its lease, and is told", async () => {
    await using cluster = await Cluster.start(1);
    await using adapter = new Adapter();
    await adapter.ok("open", { client: "C", urls: cluster.urls, clock: "real" });
    await adapter.ok("acquire", { client: "C", lease: "L", keys: ["key"], ttl_ms: 2_000, wait_ms: 0 });
    await adapter.ok("block", { ms: 2_500 });
    assert.equal((await adapter.ok("state", { lease: "L" })).state, "lost");
    await until("it was told", () => adapter.events.some(({ reason }) => reason === "unconfirmed"));
  });

  test("a process that is told to end gives back what it waits for, and one that holds a lease ends", async () => {
    await using cluster = await Cluster.start(1);
    await using client = cluster.client();
    const held = await client.acquire("key");
    await using adapter = new Adapter();
    await adapter.ok("open", { client: "C", urls: cluster.urls, clock: "real" });
    await adapter.ok("acquire", { client: "C", lease: "L", keys: ["own"], ttl_ms: 60_000, wait_ms: 0 });
    const waits = adapter.call("acquire", { client: "C", lease: "W", keys: ["key"], ttl_ms: 60_000, wait_ms: null });
    await until("it waits", async () => (await cluster.key("key")).waiters === 1);
    await adapter.ok("close", { client: "C" });
    assert.equal((await waits).error.kind, "Closed");
    assert.equal((await cluster.key("key")).waiters, 0, "before `close` was over");
    // Nothing but the lease is left: it does not keep the process alive.
    adapter.child.stdin.end();
    await until("the process ends", () => adapter.child.exitCode !== null);
    assert.equal(adapter.child.exitCode, 0);
    assert.equal(adapter.stderr, "");
    await held.release();
  });

  test("a lease is left to another client by its id, and an operator's revocation is told", async () => {
    await using cluster = await Cluster.start(1);
    await using client = cluster.client();
    await using other = cluster.client();
    const lease: Lease = await client.acquire("key", { ttl: 6_000 });
    const adopted = await other.adopt(lease.detach());
    assert.equal(adopted.token, lease.token);
    const body = JSON.stringify({ key: "key", token: lease.token });
    await fetch(`${cluster.urls[0]}/v1/revoke`, { method: "POST", body });
    assert.equal(await adopted.lost, "revoked");
    await failure(adopted.release(), LostError);
    assert.equal((await failure(other.adopt(lease.leaseId), LostError)).reason, "revoked");
  });
});
