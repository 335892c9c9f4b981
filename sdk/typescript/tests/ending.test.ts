/** How leases end: dropped, closed or revoked, with a fake cluster. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { describe, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Bag } from "../src/bag.js";
import { now, systemClock } from "../src/clock.js";
import { Cluster } from "../src/cluster.js";
import { Held } from "../src/held.js";
import { Client, type Lease, LostError, StaleError } from "../src/index.js";
import { Keeper } from "../src/keeper.js";
import { Lifetime } from "../src/lifetime.js";
import { Nodes } from "../src/nodes.js";
import { Release } from "../src/release.js";
import { Server } from "../src/server.js";
import { fakeRingfence } from "../src/testing.js";
import { client, Played, problem, type Received, response, waiting } from "./support/played.js";
import { failure, until } from "./support/until.js";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

describe("ending", { concurrency: 4 }, () => {
  test("a handle that is dropped under hold-at-least leaves the key taken for that time", async (t) => {
    const warnings: string[] = [];
    const { cluster, client: it } = await fakeRingfence(t, { onWarning: (code) => void warnings.push(code) });
    await it.acquire("a", { holdAtLeast: 60_000 });
    await until("it is dropped", () => {
      collect();
      return warnings.length === 1;
    });
    assert.deepEqual(warnings, ["RINGFENCE_DROPPED"]);
    await until("it is renewed for the rest", () => (cluster.holders("a")[0]?.expiresInMs ?? 0) > 50_000);
    cluster.advance(59_000);
    assert.equal(cluster.holders("a").length, 1);
    cluster.advance(1_001);
    assert.equal(cluster.holders("a").length, 0);
  });

  test("a client that is closed under hold-at-least leaves the key taken for that time, or says that it may not be", async (t) => {
    const { cluster, client: it } = await fakeRingfence(t);
    const lease = await it.acquire("a", { holdAtLeast: 60_000 });
    assert.deepEqual(await it.close(), { left: [] });
    assert.equal(lease.state, "released");
    cluster.advance(59_000);
    assert.equal(cluster.holders("a").length, 1);
    cluster.advance(1_001);
    assert.equal(cluster.holders("a").length, 0);

    const warnings: string[] = [];
    const other = cluster.client({ onWarning: (_, message) => void warnings.push(message) });
    const next = await other.acquire("b", { holdAtLeast: 60_000 });
    cluster.away();
    assert.deepEqual(await other.close({ within: 300 }), { left: [["b"]] });
    assert.equal(next.state, "released");
    assert.deepEqual(warnings, ['not released when the client was closed: "b"']);
    cluster.back();
  });

  test("who waits for the loss keeps the handle until then, and not for longer", async (t) => {
    const { cluster, client: it } = await fakeRingfence(t);
    const told: string[] = [];
    const handles = await (async () => {
      const leases = await Promise.all(["a", "b"].map((key) => it.acquire(key)));
      const [one, other] = leases as [Lease, Lease];
      void one.lost.then((reason) => told.push(`${one.keys} ${reason}`));
      other.signal.addEventListener("abort", () => told.push(`${other.keys} ${other.reason}`));
      return leases.map((lease) => new WeakRef(lease));
    })();
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    for (let n = 0; n < 5; n += 1) {
      await turn();
      collect();
    }
    assert.ok(handles.every((handle) => handle.deref() !== undefined));
    cluster.revoke("a");
    cluster.revoke("b");
    cluster.advance(5_000);
    await until("both are told", () => told.length === 2);
    assert.deepEqual(told.sort(), ["a revoked", "b revoked"]);
    await until("both are collected", async () => {
      await turn();
      collect();
      return handles.every((handle) => handle.deref() === undefined);
    });
  });

  test("work is told that its client was closed before its lease is given back", async () => {
    await using played = await Played.start(() => undefined);
    const it = client(played);
    const order: string[] = [];
    const see = ({ method, body }: Received) => method === "DELETE" || body?.operations?.[0]?.release !== undefined;
    const work = (name: string) => async (_: Lease, signal: AbortSignal) => {
      order.push(`${name} works`);
      await once(signal, "abort");
      order.push(`${name} is told, after ${played.received.filter(see).length} releases`);
    };
    const all = [failure(it.using("a", work("a")), LostError), failure(it.lead("b", work("b")), Error)];
    await until("both work", () => order.length === 2);
    await it.close();
    const errors = await Promise.all(all);
    assert.deepEqual(order.slice(2), ["a is told, after 0 releases", "b is told, after 0 releases"]);
    assert.deepEqual(
      errors.map(({ message }) => message),
      ["the lease is lost: it was released", "the client is closed"],
    );
  });

  test("a leader goes on, whoever was the first to say that its lease is gone", async (t) => {
    const { cluster, client: it } = await fakeRingfence(t);
    const told: string[] = [];
    let term = 0;
    const tokens: number[] = [];
    const terms: ((signal: AbortSignal) => unknown)[] = [
      // The release.
      () => cluster.revoke("leader"),
      // A renewal of the client.
      async (signal) => {
        cluster.revoke("leader");
        cluster.advance(5_000);
        await once(signal, "abort");
      },
      // The storage, before either.
      () => {
        cluster.revoke("leader");
        throw new StaleError("the storage knows");
      },
      // The storage alone.
      () => {
        throw new StaleError("only the storage knows");
      },
      () => "done",
    ];
    const work = async (lease: Lease, signal: AbortSignal) => {
      tokens.push(lease.token);
      term += 1;
      return await terms[term - 1]?.(signal);
    };
    const onError = (error: unknown) => void told.push((error as Error).message);
    assert.equal(await it.lead("leader", work, { onError }), "done");
    assert.deepEqual(told, [
      "the lease is lost: an operator revoked it",
      "the lease is lost: an operator revoked it",
      "the storage knows",
      "only the storage knows",
    ]);
    assert.equal(new Set(tokens).size, 5);
    // A renewal by the work itself.
    const own = async (lease: Lease) => {
      term += 1;
      if (term === 6) {
        cluster.revoke("leader");
        await lease.renew();
      }
      return "done";
    };
    term = 5;
    assert.equal(await it.lead("leader", own, { onError }), "done");
    assert.equal(told.length, 5);
  });

  test("close says that a lease was refused to be released, also while an acquire leaves the queue", async () => {
    let leaving: Received | undefined;
    await using played = await Played.start((request) => {
      const { method, body, leaseId } = request;
      if (method === "PUT") {
        return body.keys[0].key === "busy" ? waiting(request) : undefined;
      }
      if (method !== "DELETE") {
        return undefined;
      }
      if (leaseId === mine) {
        refusals += 1;
        return problem("forbidden", 403);
      }
      return (request) => {
        leaving ??= request;
      };
    });
    let refusals = 0;
    const it = new Client({ urls: [played.url], onWarning: () => {} });
    const mine = (await it.acquire("mine")).leaseId;
    const busy = failure(it.acquire("busy", { wait: 1 }), Error);
    const request = await until("it leaves the queue", () => leaving);
    const closed = it.close();
    await until("the release and its repeat are refused", () => refusals === 2);
    request.socket.write(response(204));
    assert.deepEqual(await closed, { left: [["mine"]] });
    await busy;
  });

  test("a candidate goes on if its lease is revoked before it is granted", async () => {
    await using played = await Played.start(({ method }, count) =>
      method === "PUT" && count === 0 ? problem("lease-gone", 410, { reason: "revoked" }) : undefined,
    );
    await using it = client(played);
    const told: unknown[] = [];
    assert.equal(await it.lead("leader", () => 7, { onError: (error) => void told.push(error) }), 7);
    assert.ok(told.length === 1 && told[0] instanceof LostError);
  });

  test("a server that is closed asks no more whether the node lives", async () => {
    await using first = await Played.start(() => undefined);
    await using second = await Played.start(() => undefined);
    const servers = [first, second].map(({ url }) => new Server(new URL(url), undefined, systemClock));
    for (const { pulse } of servers) {
      const unwatch = pulse.watch(() => {});
      unwatch(true);
    }
    servers[0]?.closeIdle();
    await until("the other asks", () => second.received.length > 0);
    assert.equal(first.received.length, 0);
    servers[1]?.closeIdle();
  });

  test("a lease that the client took stays taken, whoever takes it again", async () => {
    await using played = await Played.start(() => undefined);
    const cluster = new Cluster(new Nodes([played.url], undefined, systemClock), systemClock);
    const warn = () => {};
    const owner = { cluster, keeper: new Keeper(cluster, warn), warn, leases: new Bag<Release>() };
    const granted = { leaseId: randomUUID(), token: 1, ttlMs: 60_000, expiresInMs: 60_000, keys: [] };
    const at = now(systemClock);
    const held = new Held(granted, new Lifetime({ grant: granted, sent: at }), systemClock);
    const release = new Release(held, owner, 0, at);
    release.take();
    release.take();
    assert.ok(release.isTaken);
    await release.release();
    cluster.nodes.closeIdle();
  });
});
