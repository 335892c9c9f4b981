/** The fake cluster: it answers as a real node does, and what tests do with it is seen by the client. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { chmodSync, existsSync, realpathSync } from "node:fs";
import { connect } from "node:net";
import { dirname, join } from "node:path";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { FakeTable, type Request } from "../src/fake-table.js";
import { HeldError, type Lease, LostError, TimedOutError, UnavailableError, UnknownError } from "../src/index.js";
import { FakeCluster, fakeRingfence } from "../src/testing.js";
import { Cluster } from "./support/cluster.js";
import { ringfence } from "./support/program.js";
import { failure, SOON_MS, until } from "./support/until.js";

// biome-ignore lint/suspicious/noExplicitAny: each answer has fields of its own.
type Json = any;

/** Asks a node, and tells of the answer what does not depend on times and on numbers. */
function asker(url: string) {
  const tokens: number[] = [];
  const told = ({ status, body }: { status: number; body?: Json }) => {
    if (body?.token !== undefined && !tokens.includes(body.token)) {
      assert.ok(body.token > Math.max(0, ...tokens), "tokens go up");
      tokens.push(body.token);
    }
    const nth = (token: number) => tokens.indexOf(token);
    const holders = (body?.holders ?? []).map((holder: Json) => [
      holder.key,
      holder.mode,
      holder.limit,
      holder.holder,
      nth(holder.token),
    ]);
    const keys = (body?.keys ?? []).map((key: Json) => [key.key, key.mode, key.limit, nth(key.fence)]);
    const waiters = Array.isArray(body?.waiters)
      ? body.waiters.map((one: Json) => [one.holder, one.mode])
      : body?.waiters;
    const problem = body?.type?.split(":").at(-1);
    return [
      status,
      problem,
      body?.reason,
      body?.state,
      body?.ahead,
      body?.holder,
      body?.ttl_ms,
      body?.metadata,
      waiters,
      ...holders,
      ...keys,
    ];
  };
  const ask = async (method: string, path: string, body?: object) => {
    const init = body === undefined ? { method } : { method, body: JSON.stringify(body) };
    const response = await fetch(`${url}${path}`, init);
    const text = await response.text();
    assert.ok(response.headers.get("ringfence-cluster"), path);
    const json = text === "" ? undefined : JSON.parse(text);
    return json?.results === undefined ? told({ status: response.status, body: json }) : json.results.map(told);
  };
  return ask;
}

/** The same requests to any node. Ids are the caller's. */
async function script(url: string): Promise<unknown[]> {
  const ask = asker(url);
  const [a, b, c, d, e, f] = Array.from({ length: 6 }, () => randomUUID()) as [
    string,
    string,
    string,
    string,
    string,
    string,
  ];
  const put = (id: string, keys: object[], more: object = {}) =>
    ask("PUT", `/v1/leases/${id}`, { keys, ttl_ms: 60_000, ...more });
  const remove = (id: string) => ask("DELETE", `/v1/leases/${id}`);
  const shared = (key: string, limit?: number) => ({ key, mode: "shared", ...(limit === undefined ? {} : { limit }) });
  const answers: unknown[] = [];
  const tell = async (answer: Promise<unknown>) => void answers.push(await answer);
  // One id, and what becomes of it.
  await tell(put(a, [{ key: "x" }, shared("y")], { holder: "one", metadata: { on: "here" } }));
  await tell(put(a, [{ key: "x" }, shared("y")]));
  await tell(put(a, [{ key: "x" }]));
  await tell(ask("GET", "/v1/keys/x"));
  await tell(ask("GET", "/v1/keys/free"));
  await tell(ask("POST", `/v1/leases/${a}/renew`, { ttl_ms: 50_000 }));
  await tell(put(b, [{ key: "x" }]));
  await tell(put(b, [{ key: "x" }], { wait_ms: 50 }));
  await tell(put(b, [{ key: "x" }]));
  await tell(ask("POST", `/v1/leases/${b}/renew`, {}));
  await tell(remove(b));
  await tell(remove(c));
  await tell(put(c, [{ key: "z" }]));
  await tell(ask("POST", `/v1/leases/${d}/renew`, {}));
  // The queue: a reader does not overtake a writer, and a writer holds back on its other key, too.
  await tell(put(d, [{ key: "y" }, { key: "w" }], { wait_ms: 20, keep_place: true, holder: "writer" }));
  await tell(put(e, [shared("y")], { wait_ms: 20, keep_place: true }));
  await tell(put(f, [{ key: "w" }]));
  await tell(ask("POST", `/v1/leases/${d}/renew`, {}));
  await tell(ask("GET", "/v1/keys/y"));
  const [writer, reader] = [
    put(d, [{ key: "y" }, { key: "w" }], { wait_ms: 30_000, keep_place: true }),
    put(e, [shared("y")], { wait_ms: 30_000, keep_place: true }),
  ];
  await tell(remove(a));
  await tell(writer);
  await tell(remove(d));
  await tell(reader);
  await tell(remove(a));
  await tell(put(a, [{ key: "x" }]));
  // Who waits for two keys holds back others on the one that is free.
  const [p, q, both, one] = Array.from({ length: 4 }, () => randomUUID()) as [string, string, string, string];
  await tell(put(p, [{ key: "p" }]));
  await tell(put(q, [{ key: "q" }]));
  await tell(put(both, [{ key: "p" }, { key: "q" }], { keep_place: true, holder: "both" }));
  await tell(put(one, [{ key: "p" }], { keep_place: true, holder: "one" }));
  await tell(remove(p));
  await tell(ask("GET", "/v1/keys/p"));
  await tell(put(randomUUID(), [{ key: "p" }]));
  await tell(remove(q));
  await tell(put(both, [{ key: "p" }, { key: "q" }]));
  await tell(put(one, [{ key: "p" }], { keep_place: true }));
  await tell(remove(both));
  await tell(put(one, [{ key: "p" }]));
  // Limits: the smallest counts.
  const seats = Array.from({ length: 4 }, () => randomUUID());
  await tell(put(seats[0] ?? "", [shared("s", 3)]));
  await tell(put(seats[1] ?? "", [shared("s", 2)]));
  await tell(put(seats[2] ?? "", [shared("s", 3)]));
  await tell(put(seats[2] ?? "", [shared("s")], { keep_place: true }));
  await tell(remove(seats[1] ?? ""));
  await tell(put(seats[2] ?? "", [shared("s")]));
  // Many in one request.
  const [g, h, i] = [randomUUID(), randomUUID(), randomUUID()];
  const operations = [
    { acquire: { lease_id: g, keys: [{ key: "g" }], ttl_ms: 60_000 } },
    { acquire: { lease_id: h, keys: [{ key: "g" }], keep_place: true } },
    { acquire: { lease_id: i, keys: [{ key: "g" }] } },
    { renew: { lease_id: g } },
    { renew: { lease_id: i } },
    { release: { lease_id: h } },
    { release: { lease_id: i } },
  ];
  await tell(ask("POST", "/v1/batch", { operations }));
  await tell(ask("POST", "/v1/renew", { lease_ids: [g, h, a] }));
  // Ends that the holder did not choose.
  const { holders } = (await (await fetch(`${url}/v1/keys/g`)).json()) as Json;
  await tell(ask("POST", "/v1/revoke", { key: "g", token: holders[0].token }));
  await tell(ask("POST", "/v1/revoke", { key: "g", token: holders[0].token }));
  await tell(remove(g));
  await tell(ask("POST", `/v1/leases/${g}/renew`, {}));
  const [k, l] = [randomUUID(), randomUUID()];
  await tell(put(k, [{ key: "k" }], { ttl_ms: 200 }));
  await tell(put(l, [{ key: "k" }], { wait_ms: 30_000, keep_place: true }));
  await tell(put(k, [{ key: "k" }]));
  // A wait that nobody comes back to.
  const [m, n] = [randomUUID(), randomUUID()];
  await tell(put(m, [{ key: "k" }], { keep_place: true, holder: "gone" }));
  const left = new AbortController();
  const body = JSON.stringify({ keys: [{ key: "k" }], wait_ms: 30_000 });
  const hangsUp = fetch(`${url}/v1/leases/${n}`, { method: "PUT", body, signal: left.signal }).catch(() => undefined);
  const waiting = async () => ((await (await fetch(`${url}/v1/keys/k`)).json()) as Json).waiters.length;
  await until("both wait", async () => (await waiting()) === 2);
  left.abort();
  await hangsUp;
  await until("both places are lost", async () => (await waiting()) === 0);
  await tell(put(n, [{ key: "k" }]));
  await tell(put(m, [{ key: "k" }]));
  return answers;
}

test("a fake cluster answers as a real node does", async () => {
  await using fake = await FakeCluster.start();
  await using real = await Cluster.start(1);
  const [ours, theirs] = await Promise.all([script(fake.url), script(real.urls[0] ?? "")]);
  assert.equal(ours.length, theirs.length);
  for (const [index, answer] of ours.entries()) {
    assert.deepEqual(answer, theirs[index], `answer ${index}`);
  }
});

test("the conformance suite plays the fake in the place of the node", async (t) => {
  const suite = join(dirname(realpathSync(ringfence())), "conformance");
  if (!existsSync(suite)) {
    t.skip("the conformance suite is not built");
    return;
  }
  const [node, adapter] = ["support/fake-node.js", "../conformance-adapter.js"].map((path) =>
    fileURLToPath(new URL(path, import.meta.url)),
  );
  chmodSync(node ?? "", 0o755);
  const args = ["--program", node ?? "", "--tier", "quick", "--adapter", `${process.execPath} ${adapter}`];
  await promisify(execFile)(suite, args).catch(({ stdout, stderr }) => assert.fail(`${stdout}${stderr}`));
});

describe("what a test does with it", { concurrency: true }, () => {
  test("leases are revoked, expire, and are told of it", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    const [one, other] = [await client.acquire("a"), await client.acquire("b")];
    const [holder] = cluster.holders("a");
    assert.deepEqual([holder?.token, holder?.holder, holder?.mode], [one.token, null, "exclusive"]);
    cluster.revoke("a");
    cluster.expire("b");
    assert.deepEqual([cluster.holders("a"), one.state], [[], "held"], "nobody was told yet");
    const next = await client.acquire("a");
    assert.ok(next.token > one.token);
    cluster.advance(5_000);
    assert.deepEqual(await Promise.all([one.lost, other.lost]), ["revoked", "expired"]);
    assert.equal(next.state, "held");
    cluster.advance(20_000);
    assert.equal(next.signal.reason.reason, "unconfirmed", "at once");
    assert.deepEqual(cluster.holders("a"), []);
  });

  test("work is stopped, and `using` says so", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    const error = await failure(
      client.using("a", async (_, signal) => {
        cluster.advance(60_000);
        assert.ok(signal.aborted);
      }),
      LostError,
    );
    assert.equal(error.reason, "unconfirmed");
  });

  test("keys are held, shared, limited and waited for", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    const other = cluster.client();
    const held = await client.acquire("a", { holder: "one", metadata: { on: "here" } });
    assert.equal((await failure(other.acquire("a", { wait: 0 }), HeldError)).holders[0]?.holder, "one");
    assert.equal((await failure(other.acquire("a", { wait: 50 }), TimedOutError)).reason, "wait");
    assert.equal(cluster.waiters("a"), 0);
    const order: string[] = [];
    const waits = [1, 2].map((n) => other.using("a", { ttl: 5_000 }, () => order.push(`writer ${n}`)));
    await until("they wait", () => cluster.waiters("a") === 2);
    const reader = client.using("a", { shared: true }, () => order.push("reader"));
    await until("it waits", () => cluster.waiters("a") === 3);
    await held.release();
    await Promise.all([...waits, reader]);
    assert.deepEqual(order, ["writer 1", "writer 2", "reader"]);
    const seats = await Promise.all([1, 2, 3].map(() => client.tryAcquire("seats", { limit: 2 })));
    assert.equal(seats.filter((seat) => seat !== undefined).length, 2);
  });

  test("a cluster that is away refuses or is silent, and has its leases when it is back", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    const lease = await client.acquire("a");
    const waits = client.acquire("a");
    await until("it waits", () => cluster.waiters("a") === 1);
    cluster.away();
    await failure(client.tryAcquire("b"), UnavailableError);
    cluster.away("silent");
    await failure(client.tryAcquire("b"), UnknownError);
    cluster.back();
    await lease.renew();
    await lease.release();
    const next: Lease = await waits;
    assert.ok(next.token > lease.token);
    cluster.away();
    cluster.advance(15_000);
    assert.equal(next.state, "lost");
  });

  test("time that passes in steps loses no lease that is renewed", async (t) => {
    let tell = () => {};
    const { cluster, client } = await fakeRingfence(t, { hooks: { renewed: () => tell() } });
    const lease = await client.acquire("a", { ttl: 15_000 });
    // The pause of a second between renewals passes with it, too.
    const begun = performance.now();
    for (let step = 0; step < 100; step += 1) {
      const renewed = new Promise<void>((resolve) => {
        tell = resolve;
      });
      cluster.advance(5_000);
      await Promise.race([renewed, lease.lost]);
      assert.equal(lease.state, "held", `step ${step}`);
    }
    assert.ok(performance.now() - begun < SOON_MS);
  });

  test("a client that resets its connection amid a request ends nothing else", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    const { hostname, port } = new URL(cluster.url);
    const socket = connect(Number(port), hostname);
    socket.write("PUT /v1/leases/x HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n{");
    // The node has begun to read.
    await once(socket, "data");
    socket.resetAndDestroy();
    assert.ok(await client.tryAcquire("a"));
  });

  test("a grant that several requests may be answered with outlives them all", () => {
    const table = new FakeTable();
    const wanted = { keys: ["a"], wait_ms: 10_000, ttl_ms: 60_000 };
    table.acquire("holder", wanted, () => {});
    const requests = [1, 2].map(() => table.acquire("waiter", wanted, () => {}) as Request);
    table.release("holder");
    for (const request of requests) {
      table.hungUp("waiter", request);
    }
    table.run(5_000);
    assert.equal(table.key("a").holders.length, 1);
  });

  test("hold-at-least passes with its time", async (t) => {
    const { cluster, client } = await fakeRingfence(t);
    await client.using("nightly", { holdAtLeast: 60_000 }, () => undefined);
    cluster.advance(59_000);
    assert.equal(await client.tryAcquire("nightly"), undefined);
    cluster.advance(1_001);
    assert.ok(await client.tryAcquire("nightly"));
  });
});
