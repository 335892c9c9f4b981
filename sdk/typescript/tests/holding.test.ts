/** What a holder sees while it holds a lease, against a played server. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { systemClock } from "../src/clock.js";
import { Client, LostError } from "../src/index.js";
import {
  client,
  grant,
  hang,
  isRenewal,
  Played,
  problem,
  type Received,
  released,
  renewals,
  response,
  usual,
} from "./support/played.js";
import { failure, until } from "./support/until.js";

/** Clocks that the test makes jump. */
function clocks() {
  const jumped = { monotonic: 0, uptime: 0 };
  const clock = {
    monotonic: () => systemClock.monotonic() + jumped.monotonic,
    uptime: () => systemClock.uptime() + jumped.uptime,
  };
  return { jumped, clock };
}

describe("holding", { concurrency: 4 }, () => {
  test("an end that the cluster reports is told with its reason, and the others live", async () => {
    await using played = await Played.start(
      renewals((request) => {
        const results = (request.body.lease_ids as string[]).map((lease_id, n) => {
          const gone = {
            type: "urn:ringfence:problem:lease-gone",
            title: "",
            status: 410,
            detail: "",
            reason: "revoked",
          };
          return n === 0 ? { status: 410, body: gone } : { status: 200, body: grant(request, { lease_id }) };
        });
        return response(200, { results });
      }),
    );
    await using it = client(played);
    const one = await it.acquire("a", { ttl: 6_000 });
    const other = await it.acquire("b", { ttl: 6_000 });
    assert.equal(await one.lost, "revoked");
    assert.equal(one.state, "lost");
    assert.equal(one.signal.reason.reason, "revoked");
    assert.throws(() => one.throwIfLost(), LostError);
    assert.notEqual(other.state, "lost");
    await released(one, other);
  });

  test("a renewal that is answered too late does not revive the lease", async () => {
    const { jumped, clock } = clocks();
    let asked: Received | undefined;
    await using played = await Played.start((request) => {
      const isOne = request.method === "POST" && !isRenewal(request);
      asked ??= isOne ? request : undefined;
      return isOne ? () => {} : undefined;
    });
    await using it = new Client({ urls: [played.url], clock });
    const lease = await it.acquire("a", { renew: false });
    jumped.monotonic += 10_000;
    const renewal = failure(lease.renew(), LostError);
    const request = await until("it is asked", () => asked);
    // What it says would be true for another nine seconds.
    jumped.monotonic += 6_000;
    request.socket.write(usual(request));
    assert.equal((await renewal).reason, "unconfirmed");
    assert.equal(lease.state, "lost");
    assert.equal(lease.remaining, 0);
    await released(lease);
  });

  test("the time of a lease counts from when its request was sent", async () => {
    await using played = await Played.start(({ method }) =>
      method === "PUT" ? (request) => void setTimeout(() => request.socket.write(usual(request)), 1_000) : undefined,
    );
    await using it = client(played);
    const lease = await it.acquire("a");
    assert.ok(lease.remaining <= 14_000, `${lease.remaining}`);
    await released(lease);
  });

  test("a lease that nobody confirms is held, then unsure, then lost, and the holder is told", async () => {
    await using played = await Played.start(renewals(hang));
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 6_000 });
    const states = new Set<string>();
    await until("it is lost", () => {
      states.add(lease.state);
      return lease.state === "lost";
    });
    assert.deepEqual([...states], ["held", "unsure", "lost"]);
    assert.ok(lease.signal.aborted);
    await released(lease);
  });

  test("an unsure lease is held again after a renewal", async () => {
    let mayAnswer = false;
    await using played = await Played.start(
      renewals((request) => (mayAnswer ? usual(request) : problem("unavailable", 503))),
    );
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 9_000 });
    await until("it is unsure", () => lease.state === "unsure");
    mayAnswer = true;
    await until("it is held", () => lease.state === "held");
    await released(lease);
  });

  test("a renewal that fails by a mistake is told, and followed by another", async () => {
    let isBroken = false;
    const clock = {
      ...systemClock,
      monotonic: () => {
        if (isBroken) {
          isBroken = false;
          throw new Error("the clock is broken");
        }
        return systemClock.monotonic();
      },
    };
    await using played = await Played.start(
      renewals((_, count) => {
        isBroken = count === 0;
        return undefined;
      }),
    );
    const warnings: string[] = [];
    await using it = new Client({ urls: [played.url], clock, onWarning: (_, text) => void warnings.push(text) });
    const lease = await it.acquire("a", { ttl: 3_000 });
    await until("it is renewed again", () => played.received.filter(isRenewal).length > 2);
    assert.deepEqual(warnings, ["leases are not renewed: Error: the clock is broken"]);
    assert.notEqual(lease.state, "lost");
    await released(lease);
  });

  test("a lease that was adopted twice is renewed once", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 3_000 });
    const others = [await it.adopt(lease.leaseId), await it.adopt(lease.leaseId)];
    // The client no longer looks after these handles.
    const signals = [lease.signal, others[0]?.signal as AbortSignal];
    const renewal = await until("it is renewed", () => played.received.find(isRenewal));
    assert.deepEqual(renewal.body.lease_ids, [lease.leaseId]);
    await until("those that wait for the first handles are told", () => signals.every(({ aborted }) => aborted));
    assert.deepEqual([lease.reason, others[0]?.reason, others[1]?.state], ["unconfirmed", "unconfirmed", "held"]);
    await released(lease, ...others);
  });

  test("a renewal that hangs is sent to the next node in time", async () => {
    await using first = await Played.start((request) => (isRenewal(request) ? () => {} : undefined));
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const lease = await it.acquire("a", { ttl: 8_000 });
    await until("the second one is asked", () => second.received.some(isRenewal));
    assert.notEqual(lease.state, "lost");
    await released(lease);
  });

  test("a node that hangs is noticed while an acquire waits in its queue", async () => {
    let hangs = false;
    await using first = await Played.start((request) => {
      if (request.method === "PUT" && request.body.wait_ms > 100) {
        hangs = true;
      }
      const place = { lease_id: request.leaseId, state: "waiting", ahead: 0 };
      return hangs ? () => {} : request.method === "PUT" ? response(202, place) : undefined;
    });
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const begun = performance.now();
    const lease = await it.acquire("a");
    assert.ok(performance.now() - begun < 20_000, "and not after the 30 s of its wait");
    assert.equal(second.of("PUT")[0]?.leaseId, first.of("PUT")[0]?.leaseId);
    await released(lease);
  });

  test("the clock jumps: the state says so before any timer", async () => {
    for (const which of ["monotonic", "uptime"] as const) {
      const { jumped, clock } = clocks();
      await using played = await Played.start(() => undefined);
      await using it = new Client({ urls: [played.url], clock });
      const lease = await it.acquire("a");
      const { signal } = lease;
      assert.equal(lease.state, "held");
      jumped[which] += 15_000;
      assert.equal(lease.state, "lost");
      assert.ok(signal.aborted, "whoever looks tells the others");
      assert.equal(lease.reason, "unconfirmed");
      await released(lease);
    }
  });

  test("the clock jumps: the holder is told without looking", async () => {
    const { jumped, clock } = clocks();
    await using played = await Played.start(() => undefined);
    await using it = new Client({ urls: [played.url], clock });
    const lease = await it.acquire("a");
    const { signal } = lease;
    jumped.uptime += 15_000;
    await until("the signal aborts", () => signal.aborted);
    const other = await it.acquire("b", { ttl: 3_000 });
    const renewal = await until("another lease is renewed", () => played.received.find(isRenewal));
    assert.deepEqual(renewal.body.lease_ids, [other.leaseId], "and the lost one is not");
    await released(lease, other);
  });

  test("the event loop is blocked past the end: the holder is told", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 2_000 });
    const { signal } = lease;
    const end = performance.now() + 2_000;
    while (performance.now() < end) {
      // Nothing else runs.
    }
    assert.ok(!signal.aborted, "no timer has run");
    assert.equal(lease.state, "lost");
    assert.ok(signal.aborted);
    await released(lease);
  });

  test("a lease without renewals, and one with a longest hold, end by themselves", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const plain = await it.acquire("a", { ttl: 1_000, renew: false });
    const bounded = await it.acquire("b", { ttl: 15_000, maxHold: 1_000 });
    assert.equal(await plain.lost, "unconfirmed");
    assert.equal(await bounded.lost, "max-hold");
    assert.equal(played.received.filter(isRenewal).length, 0);
    await released(plain, bounded);
  });

  test("the fence of the last renewal counts, and not that of an older answer", async () => {
    let late: Received | undefined;
    await using played = await Played.start(({ method, path }, count) => {
      if (method !== "POST" || !path.endsWith("/renew") || path === "/v1/renew") {
        return undefined;
      }
      return (request) => {
        const keys = [{ key: "a", mode: "shared", limit: null, fence: 5 + count }];
        if (count === 0) {
          late = request;
        } else {
          request.socket.write(response(200, grant(request, { keys })));
        }
      };
    });
    await using it = client(played);
    const lease = await it.acquire({ key: "a", shared: true }, { ttl: 60_000 });
    const slow = lease.renew();
    const first = await until("the first is under way", () => late);
    await lease.renew();
    assert.equal(lease.fence(), 6);
    first.socket.write(response(200, grant(first, { keys: [{ key: "a", mode: "shared", limit: null, fence: 5 }] })));
    await slow;
    assert.equal(lease.fence("a"), 6);
    await released(lease);
  });
});
