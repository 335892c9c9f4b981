import assert from "node:assert/strict";
import { test } from "node:test";
import { elapsed, now, sparingly } from "../src/clock.js";
import { type Confirmation, Lifetime } from "../src/lifetime.js";

/** 9 s less 0.2 % and 15 ms. */
const SURE_MS = 9_000 - 18 - 15;

function at(ms: number, asleepMs = 0) {
  return { monotonic: 1_000_000 + ms, uptime: 5_000_000 + ms + asleepMs };
}

function sentAt(ms: number, ttlMs = 9_000): Confirmation {
  return { sent: at(ms), grant: { leaseId: "L", token: 1, ttlMs, expiresInMs: ttlMs, keys: [] } };
}

test("time counts from when the request was sent, less the allowance", () => {
  const lifetime = new Lifetime(sentAt(0));
  assert.equal(lifetime.remainingMs(at(0)), SURE_MS);
  assert.equal(lifetime.remainingMs(at(7_000)), SURE_MS - 7_000);
  assert.equal(lifetime.remainingMs(at(SURE_MS)), 0);
});

test("a lease is held, then unsure, then lost", () => {
  const lifetime = new Lifetime(sentAt(0));
  const states = [
    [0, "held"],
    [SURE_MS - 3_001, "held"],
    [SURE_MS - 3_000, "unsure"],
    [SURE_MS - 1, "unsure"],
    [SURE_MS, "lost"],
    // For good.
    [0, "lost"],
  ] as const;
  for (const [ms, state] of states) {
    assert.equal(lifetime.state(at(ms)), state, `after ${ms} ms`);
  }
  assert.equal(lifetime.loss(at(0)), "unconfirmed");
});

test("the time that the machine sleeps counts", () => {
  const lifetime = new Lifetime(sentAt(0));
  assert.equal(lifetime.state(at(1, SURE_MS - 2)), "unsure");
  assert.equal(lifetime.state(at(1, SURE_MS)), "lost");
});

test("the latest confirmation counts, in whatever order they arrive", () => {
  const lifetime = new Lifetime(sentAt(0));
  assert.ok(lifetime.confirm(sentAt(7_000), at(8_000)));
  assert.equal(lifetime.remainingMs(at(8_000)), SURE_MS - 1_000);
  assert.ok(!lifetime.confirm(sentAt(3_000, 60_000 - 57_000), at(8_001)), "it is older");
  assert.equal(lifetime.remainingMs(at(8_000)), SURE_MS - 1_000);
  assert.equal(lifetime.ttlMs, 9_000);
});

test("a confirmation that arrives too late does not revive a lease", () => {
  const lifetime = new Lifetime(sentAt(0));
  assert.ok(!lifetime.confirm(sentAt(SURE_MS - 10), at(SURE_MS)));
  assert.equal(lifetime.state(at(SURE_MS)), "lost");
});

test("the first reason of a loss counts", () => {
  const lifetime = new Lifetime(sentAt(0));
  lifetime.lose("revoked", at(1));
  lifetime.lose("forgotten", at(2));
  assert.equal(lifetime.loss(at(SURE_MS)), "revoked");
});

test("a lease is renewed only as far as its holder keeps it", () => {
  const lifetime = new Lifetime(sentAt(0), true, 12_000);
  assert.ok(lifetime.renewInMs(at(0)) < 3_000);
  assert.ok(lifetime.confirm(sentAt(4_000), at(4_010)));
  assert.equal(lifetime.renewInMs(at(4_010)), Number.POSITIVE_INFINITY);
  assert.equal(lifetime.state(at(11_999)), "held", "it needs no other renewal");
  assert.equal(lifetime.loss(at(12_000)), "max-hold");
});

test("the clock of this machine runs", async () => {
  const clock = await import("../src/clock.js");
  const before = now(clock.systemClock);
  while (elapsed(before, now(clock.systemClock)) < 2) {
    // It is a matter of two milliseconds.
  }
  assert.ok(now(clock.systemClock).uptime > 0);
});

test("the uptime is read again once a millisecond has passed, or the machine has slept", () => {
  const clocks = { monotonic: 0, wall: 0, uptime: 0 };
  let reads = 0;
  const uptime = sparingly(
    () => {
      reads += 1;
      return clocks.uptime;
    },
    () => clocks.monotonic,
    () => clocks.wall,
  );
  clocks.uptime = 5_000;
  for (const ms of [0, 0.5, 0.9]) {
    clocks.monotonic = ms;
    assert.equal(uptime(), 5_000);
  }
  assert.equal(reads, 1);
  clocks.monotonic = 1;
  clocks.uptime = 5_010;
  assert.equal(uptime(), 5_010);
  clocks.wall += 60_000;
  clocks.uptime += 60_000;
  assert.equal(uptime(), 65_010, "it has slept");
  clocks.wall -= 60_000;
  clocks.uptime += 10;
  assert.equal(uptime(), 65_020, "the wall clock was set");
});
