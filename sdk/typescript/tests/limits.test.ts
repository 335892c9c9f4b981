/** How much of anything a client uses at once, and for how long it waits for it. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, test } from "node:test";
import { Batcher } from "../src/batch.js";
import { systemClock } from "../src/clock.js";
import { Places } from "../src/connections.js";
import { Failure, Server, Unasked } from "../src/server.js";
import { Stop } from "../src/stop.js";
import { FakeCluster, fakeRingfence } from "../src/testing.js";
import { client, isBatch, isRenewal, Played, type Received, response, usual, waiting } from "./support/played.js";
import { failure, pause, SOON_MS, until } from "./support/until.js";

const GET = { method: "GET", path: "/v1/keys/a" } as const;

/** A client of two servers. To the first one, it has a request on each of its 64 connections. */
async function full() {
  let isHung = true;
  const held: Received[] = [];
  const first = await Played.start((request) => (isHung ? () => void held.push(request) : undefined));
  const second = await Played.start(() => undefined);
  const places = new Places();
  const [one, other] = [first, second].map(({ url }) => new Server(new URL(url), undefined, systemClock, places)) as [
    Server,
    Server,
  ];
  const get = (server: Server) => server.send(GET, SOON_MS);
  const all = Array.from({ length: 64 }, () => get(one));
  await until("all have arrived", () => held.length === 64);
  const answer = () => {
    isHung = false;
    for (const request of held) {
      request.socket.write(usual(request));
    }
  };
  const end = async () => {
    for (const server of [one, other]) {
      server.closeIdle();
    }
    await Promise.all([first, second].map((played) => played[Symbol.asyncDispose]()));
  };
  return { places, other, second, held, all, get, answer, [Symbol.asyncDispose]: end };
}

describe("limits", { concurrency: 4 }, () => {
  test("an outage takes no longer for many calls than for one, although few of them are alone at once", async () => {
    await using played = await Played.start(() => () => {});
    await using it = client(played);
    const begun = performance.now();
    const all = await Promise.allSettled(Array.from({ length: 600 }, (_, n) => it.tryAcquire(`k${n}`)));
    assert.ok(performance.now() - begun < SOON_MS, "one after the other they would take two minutes");
    assert.ok(all.every((one) => one.status === "rejected" && one.reason.kind === "Unknown"));
    assert.ok(played.received.filter(({ method }) => method === "PUT").length >= 24, "and some were alone");
    void it.close({ within: 0 });
  });

  test("a client has 64 connections, also to nodes that it has left; one that is idle makes room", async () => {
    await using stand = await full();
    const { other, second, held, all, get } = stand;
    assert.match((await failure(get(other), Failure)).message, /all 64 connections|no connection within/);
    assert.equal(second.connections, 0);
    // Nobody waits for the answer any more, but the connection is there.
    const stop = new Stop();
    const given = other.send({ method: "GET", path: "/" }, SOON_MS, stop);
    stop.stop(new Error("enough"));
    await failure(given, Error);
    stand.answer();
    await Promise.all(all);
    await get(other);
    await until("another has made room", () => held.some(({ socket }) => socket.destroyed));
    assert.ok(held.filter(({ socket }) => socket.destroyed).length <= 2);
    // Renewals and probes need no place.
    await other.probe();
  });

  test("each that asks for a place gets one of an idle connection, also of one that becomes idle later", async () => {
    await using stand = await full();
    const { other, all, get } = stand;
    const late = Array.from({ length: 8 }, () => get(other));
    stand.answer();
    await Promise.all([...all, ...late]);
    await Promise.all(Array.from({ length: 16 }, () => get(other)));
  });

  test("a node is not to blame for a want of places", async () => {
    await using played = await Played.start(() => undefined);
    const places = new Places();
    const server = new Server(new URL(played.url), undefined, systemClock, places);
    const turns = await Promise.all(Array.from({ length: 64 }, () => places.take(SOON_MS, new Stop())));
    await failure(server.send(GET, 500), Unasked);
    await failure(server.send(GET, SOON_MS), Unasked);
    // Once there is a place, connecting has a time of its own.
    const late = server.send(GET, SOON_MS);
    const connect = server.target.connect.bind(server.target);
    server.target.connect = async (ms) => {
      await pause(700);
      return await connect(ms);
    };
    setTimeout(() => turns[0]?.end(), 500);
    await late;
    for (const turn of turns) {
      turn.end();
    }
    await server.send(GET, SOON_MS);
    server.closeIdle();
  });

  test("a node that cannot be connected to is to blame, also while others wait for places", async () => {
    const places = new Places();
    for (let n = 0; n < 63; n += 1) {
      await places.take(SOON_MS, new Stop());
    }
    const [dead, other] = [1, 2].map(
      (port) => new Server(new URL(`http://127.0.0.1:${port}`), undefined, systemClock, places),
    ) as [Server, Server];
    let isAsked = false;
    dead.target.connect = () => {
      isAsked = true;
      return new Promise(() => {});
    };
    const failed = failure(dead.send(GET, SOON_MS), Failure);
    await until("it has a place", () => isAsked);
    const stop = new Stop();
    const waits = failure(other.send(GET, SOON_MS, stop), Error);
    assert.ok(!((await failed) instanceof Unasked));
    stop.stop(new Error("enough"));
    await waits;
  });

  test("a request that is given up does not wait for a place", async () => {
    await using stand = await full();
    const { other, places, answer, all } = stand;
    const stop = new Stop();
    const given = other.send(GET, SOON_MS, stop).catch((reason) => reason);
    assert.ok(places.needRoom);
    // This is so whatever the user gives as the reason.
    stop.stop(null);
    assert.equal(await given, null);
    assert.ok(!places.needRoom);
    answer();
    await Promise.all(all);
  });

  test("a request whose calls have all been given up ends at once", async () => {
    await using played = await Played.start((request) => (isBatch(request) ? () => {} : undefined));
    const server = new Server(new URL(played.url), undefined, systemClock);
    const batcher = new Batcher(server);
    const stops = [new Stop(), new Stop()];
    const all = stops.map((stop, n) => {
      const operation = { release: { lease_id: `${n}` } };
      // Only the callers can end it.
      return failure(
        batcher.send({ method: "DELETE", path: `/${n}`, operation }, 10 * SOON_MS, stop, () => false),
        Error,
      );
    });
    const { socket } = await until("they have arrived", () => played.received.find(isBatch));
    stops[0]?.stop(new Error("enough"));
    await batcher.send({ method: "DELETE", path: "/x", operation: {} }, SOON_MS, undefined, () => false);
    assert.ok(!socket.destroyed, "one is left");
    stops[1]?.stop(new Error("enough"));
    await until("its connection is closed", () => socket.destroyed);
    await Promise.all(all);
    server.closeIdle();
  });

  test("3,000 releases are a few requests", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const leases = await Promise.all(Array.from({ length: 3_000 }, (_, n) => it.acquire(`k${n}`, { ttl: 600_000 })));
    const before = played.received.length;
    await Promise.all(leases.map((lease) => lease.release()));
    const requests = played.received.slice(before).filter((request) => !isRenewal(request) && request.method !== "GET");
    assert.equal(
      requests.reduce((sum, { body }) => sum + body.operations.length, 0),
      3_000,
    );
    assert.ok(requests.length <= 6, `${requests.length}`);
  });

  test("a lease is held beside 400 own waiters with 256 descriptors", async (t) => {
    const { cluster, client: other } = await fakeRingfence(t);
    const busy = await other.acquire("busy", { ttl: 600_000 });
    const text = `
      import { Client } from "${new URL("../src/index.js", import.meta.url).href}";
      const client = new Client({ urls: ["${cluster.url}"], hooks: { renewed: () => process.stdout.write("renewed\\n") } });
      const lease = await client.acquire("own", { ttl: 4_000 });
      const all = Array.from({ length: 400 }, () => client.using("busy", () => 1));
      process.stdin.once("data", async () => {
        const done = await Promise.all(all);
        process.stdout.write(lease.state + " after " + done.length + "\\n");
        await client.close();
        process.exit();
      });`;
    const args = ["-c", 'ulimit -n 256; exec "$0" --input-type=module -e "$1"', process.execPath, text];
    const child = spawn("sh", args, { stdio: ["pipe", "pipe", "inherit"] });
    t.after(() => child.kill());
    let said = "";
    child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
      said += chunk;
    });
    await until("all wait", () => cluster.waiters("busy") === 400);
    const since = said.length;
    await until("it is renewed again and again", () => said.slice(since).split("renewed").length > 4);
    assert.equal(cluster.waiters("busy"), 400, "and none has lost its place");
    child.stdin.write("go\n");
    await busy.release();
    await once(child, "close");
    assert.match(said, /^held after 400$/m);
  });
});

describe("a wait at a node that falls silent", { concurrency: true }, () => {
  /** Two nodes, of which the first has a wait in its queue. */
  async function waits(livez: (count: number) => number) {
    let isWaiting: Received | undefined;
    let probes = 0;
    const first = await Played.start((request) => {
      if (request.path === "/livez") {
        probes += isWaiting === undefined ? 0 : 1;
        return response(isWaiting === undefined ? 200 : livez(probes), "{}");
      }
      if (request.method === "PUT" && request.body.wait_ms > 100) {
        isWaiting = request;
        return () => {};
      }
      if (request.method === "GET") {
        return response(200, { key: "a", holders: [] });
      }
      return request.method === "PUT" ? waiting(request) : undefined;
    });
    const seen: boolean[] = [];
    const second = await Played.start((request) => {
      if (request.method === "PUT") {
        seen.push(isWaiting?.socket.destroyed ?? true);
      }
      return undefined;
    });
    const it = client(first, second);
    const acquired = it.acquire("a");
    const wait = await until("it waits", () => isWaiting);
    void acquired.catch(() => undefined);
    const end = async () => {
      await it.close({ within: 0 });
      await Promise.all([first, second].map((played) => played[Symbol.asyncDispose]()));
    };
    return { it, second, acquired, wait, seen, probes: () => probes, [Symbol.asyncDispose]: end };
  }

  test("is left open until another node has answered", async () => {
    await using stand = await waits(() => 500);
    const { acquired, wait, seen, probes } = stand;
    const lease = await acquired;
    assert.equal(wait.leaseId, lease.leaseId);
    assert.deepEqual(seen, [false]);
    assert.ok(probes() >= 2, "it looked once more");
    await until("it is closed", () => wait.socket.destroyed);
    await lease.release();
  });

  test("stays if the node was only late", async () => {
    await using stand = await waits((count) => (count % 2 === 1 ? 500 : 200));
    const { it, second, acquired, wait, seen, probes } = stand;
    await until("it was late several times", () => probes() >= 6);
    assert.deepEqual([wait.socket.destroyed, seen], [false, []]);
    await it.locked("a");
    assert.ok(
      second.received.every(({ path }) => path === "/livez"),
      "others go on asking it, too",
    );
    wait.socket.write(usual(wait));
    await (await acquired).release();
  });
});

test("the fake serves a hundred waits of one client in their order", async () => {
  await using cluster = await FakeCluster.start();
  const it = cluster.client();
  const held = await it.acquire("key");
  const order: number[] = [];
  const all = Array.from({ length: 100 }, (_, n) => it.using("key", () => order.push(n)));
  await until("all wait", () => cluster.waiters("key") === 100);
  await held.release();
  await Promise.all(all);
  assert.deepEqual(
    order,
    order.toSorted((a, b) => a - b),
  );
});

test("waiters without a connection are served in their order, too", async () => {
  await using cluster = await FakeCluster.start();
  const it = cluster.client();
  const [key, busy] = [await it.acquire("key"), await it.acquire("busy")];
  const hogs = Array.from({ length: 32 }, () => it.using("busy", () => undefined));
  await until("they wait", () => cluster.waiters("busy") === 32);
  const order: number[] = [];
  const all = Array.from({ length: 4 }, (_, n) => it.using("key", () => order.push(n)));
  await until("all wait", () => cluster.waiters("key") === 4);
  await key.release();
  await Promise.all(all);
  assert.deepEqual(order, [0, 1, 2, 3]);
  await busy.release();
  await Promise.all(hogs);
});

test("a waiter without a connection asks the more often the less its time-to-live is", async () => {
  await using played = await Played.start((request) => {
    if (request.method !== "PUT") {
      return undefined;
    }
    return request.body.wait_ms > 100 ? () => {} : waiting(request);
  });
  const it = client(played);
  const hogs = Array.from({ length: 32 }, (_, n) => it.acquire(`k${n}`));
  await until("they wait", () => played.received.filter(({ body }) => body?.wait_ms > 100).length === 32);
  const ttls = [400, 60_000];
  const all = [...hogs, ...ttls.map((ttl) => it.acquire("key", { ttl }))];
  const asked = (ttl: number) => played.of("PUT").filter(({ body }) => body.ttl_ms === ttl).length;
  await until("the other has asked again and again", () => asked(60_000) > 4);
  assert.ok(asked(400) > 2 * asked(60_000), `${asked(400)}, ${asked(60_000)}`);
  await Promise.all([it.close({ within: 0 }), ...all.map((one) => failure(one, Error))]);
});

test("a wait whose slice is over leaves its connection to another that has none", async () => {
  const waited = new Set<string>();
  await using played = await Played.start((request) => {
    if (request.method !== "PUT") {
      return undefined;
    }
    if (request.body.wait_ms > 100) {
      waited.add(request.leaseId);
    }
    return waiting(request);
  });
  const it = client(played);
  const all = Array.from({ length: 40 }, (_, n) => it.acquire(`k${n}`).catch(() => undefined));
  await until("each has waited with a connection", () => waited.size === 40);
  await it.close({ within: 0 });
  await Promise.all(all);
});
