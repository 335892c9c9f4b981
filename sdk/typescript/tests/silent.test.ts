/** When a node counts as silent, against played servers. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Client, type Lease, TimedOutError } from "../src/index.js";
import { client, Played, type Received, released, response, waiting } from "./support/played.js";
import { failure, until } from "./support/until.js";

const NOBODY = { key: "a", holders: [] };

describe("a silent node", { concurrency: true }, () => {
  type Call = (it: Client, lease: Lease) => Promise<unknown>;
  const brief: [string, Call][] = [
    ["600 ms", (it) => it.locked("a", { timeout: 600 })],
    ["200 ms", (it) => it.locked("a", { timeout: 200 })],
    ["200 ms in a batch", (_, lease) => lease.renew(undefined, { timeout: 200 })],
  ];
  for (const [time, call] of brief) {
    test(`a node that falls silent is left, although no call has the time to wait for that: ${time}`, async () => {
      let isSilent = false;
      await using first = await Played.start(() => (isSilent ? () => {} : undefined));
      await using second = await Played.start(() => undefined);
      await using it = client(first, second);
      const lease = await it.acquire("a", { ttl: 600_000 });
      isSilent = true;
      await until("another is asked", async () => {
        const seen = await call(it, lease).catch(({ kind }) => kind);
        assert.ok(!seen || seen === "TimedOut");
        return second.received.some(({ path }) => path !== "/livez");
      });
      await released(lease);
    });
  }

  /** Two nodes. The first answers neither one call, which is `made`, nor one probe, until that is over. */
  async function probed(made: (it: Client, held: () => Received | undefined) => Promise<unknown>) {
    let held: Received | undefined;
    const probes: Received[] = [];
    const first = await Played.start((request) => {
      if (request.path === "/livez") {
        return probes.push(request) === 1 ? () => {} : undefined;
      }
      if (request.method !== "GET") {
        return undefined;
      }
      const isFirst = held === undefined;
      held ??= request;
      return isFirst ? () => {} : response(200, NOBODY);
    });
    const second = await Played.start(() => undefined);
    const it = client(first, second);
    await made(it, () => (probes.length > 0 ? held : undefined));
    await until("the probe is over", () => probes[0]?.socket.destroyed);
    const end = async () => {
      await it.close();
      await Promise.all([first, second].map((played) => played[Symbol.asyncDispose]()));
    };
    return { it, second, probes, [Symbol.asyncDispose]: end };
  }

  test("a node is asked on if only a probe that nobody waits for any more is not answered", async () => {
    await using stand = await probed(async (it, held) => {
      const locked = it.locked("a");
      (await until("it is probed", held)).socket.write(response(200, NOBODY));
      await locked;
    });
    await stand.it.locked("a");
    assert.deepEqual(stand.second.received, []);
  });

  test("a node is asked on if it was late, and answers once its caller has given up", async () => {
    await using stand = await probed((it) => failure(it.locked("a", { timeout: 400 }), TimedOutError));
    await until("it is probed once more", () => stand.probes.length > 1);
    await stand.it.locked("a");
    assert.deepEqual(stand.second.received, []);
  });

  test("a node that does not answer its probe is left, although it answers others", async () => {
    await using first = await Played.start((request) => {
      if (request.path === "/livez") {
        return () => {};
      }
      if (request.method !== "PUT" || request.body.keys[0].key !== "hung") {
        return undefined;
      }
      return request.body.wait_ms > 100 ? () => {} : waiting(request);
    });
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const warm = await it.acquire("warm");
    const hung = it.acquire("hung");
    // The thread that has the other request runs.
    let isDone = false;
    const answered = (async () => {
      while (!isDone) {
        await it.acquire(`other/${Math.random()}`).then((lease) => lease.release());
      }
    })();
    const begun = performance.now();
    const lease = await hung;
    assert.ok(performance.now() - begun < 20_000, "and not after the 30 s of its wait");
    isDone = true;
    await answered;
    assert.equal(second.of("PUT")[0]?.leaseId, lease.leaseId);
    await released(warm, lease);
  });
});
