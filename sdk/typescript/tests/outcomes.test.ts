/** What a played server's answers mean: done, not done, or unknown. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import {
  HeldError,
  LostError,
  RejectedError,
  TimedOutError,
  UnauthorizedError,
  UnavailableError,
  UnknownError,
} from "../src/index.js";
import {
  type Answer,
  client,
  grant,
  Played,
  problem,
  type Received,
  response,
  type Script,
  usual,
  waiting,
} from "./support/played.js";
import { failure, until } from "./support/until.js";

/** Answers PUTs, one after the other, the last for ever; anything else as usual. */
function puts(...answers: readonly Answer[]): Script {
  return ({ method }, count) => (method === "PUT" ? answers[Math.min(count, answers.length - 1)] : undefined);
}

const hangUp = ({ socket }: Received) => {
  socket.destroy();
};
const cutInHalf = (request: Received) => {
  request.socket.end(response(201, grant(request)).slice(0, -20));
};

describe("outcomes", { concurrency: true }, () => {
  const inDoubt: Record<string, Answer> = {
    "a closed connection": hangUp,
    "a reset": ({ socket }) => void socket.resetAndDestroy(),
    "half an answer": cutInHalf,
    "a 200 of a proxy": response(200, "<html>welcome</html>"),
    "an empty 200": response(200),
    "the grant of another lease": (request) =>
      void request.socket.write(response(201, grant(request, { lease_id: "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10" }))),
    "a 502 of a proxy": response(502, "<html>bad gateway</html>"),
    "a 503 of a proxy": response(503, "no server is available"),
    "a 503 of somebody else": response(503, { type: "urn:somebody:else", status: 503, title: "", detail: "" }),
    "a 404 of a proxy": response(404, "no such page"),
    "our 504": problem("indeterminate", 504),
    "a redirect": response(307, "", { location: "http://127.0.0.1:1/" }),
    "no HTTP": "SSH-2.0-OpenSSH\r\n\r\n",
  };
  for (const [name, answer] of Object.entries(inDoubt)) {
    test(`${name} leaves in doubt, and the lease is given back`, async () => {
      await using played = await Played.start(puts(answer));
      await using it = client(played);
      const error = await failure(it.acquire("a", { wait: 1_000 }), UnknownError);
      const ids = new Set(played.of("PUT").map(({ leaseId }) => leaseId));
      assert.deepEqual([...ids], [error.leaseId], "one id for all repeats");
      assert.ok(played.of("PUT").length > 1);
      assert.equal((await played.nth("DELETE", 0)).leaseId, error.leaseId);
      assert.ok(!JSON.stringify(error).includes(error.leaseId), "the id is a secret");
    });
  }

  test("doubt is sticky: a 503 to a repeat says nothing of the first, nor does a denial", async () => {
    for (const later of [problem("unavailable", 503), problem("forbidden", 403)]) {
      await using played = await Played.start(puts(problem("indeterminate", 504), later));
      await using it = client(played);
      const error = await failure(it.acquire("a", { wait: 0 }), UnknownError);
      assert.equal((await played.nth("DELETE", 0)).leaseId, error.leaseId);
    }
  });

  test("a refused connection and our 503 are not done", async () => {
    const gone = await Played.start(() => undefined);
    const url = gone.url;
    await gone[Symbol.asyncDispose]();
    await using it = client({ url });
    await failure(it.acquire("a", { wait: 0 }), UnavailableError);
    await using played = await Played.start(puts(problem("unavailable", 503)));
    await using other = client(played);
    await failure(other.acquire("a", { wait: 0 }), UnavailableError);
    await other.close();
    assert.deepEqual(played.of("DELETE"), [], "there is nothing to give back");
  });

  test("a grant whose answer was lost is found by the repeat", async () => {
    await using played = await Played.start(puts(hangUp, (r) => void r.socket.write(response(200, grant(r)))));
    await using it = client(played);
    const lease = await it.acquire("a");
    const [first, second] = played.of("PUT");
    assert.equal(first?.leaseId, lease.leaseId);
    assert.equal(second?.leaseId, lease.leaseId);
    await lease.release();
  });

  test("a 503 of one node is followed by a grant of another", async () => {
    await using first = await Played.start(puts(problem("unavailable", 503)));
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const lease = await it.acquire("a", { wait: 0 });
    assert.equal(second.of("PUT")[0]?.leaseId, lease.leaseId);
    await lease.release();
  });

  test("a redirect is not followed", async () => {
    await using elsewhere = await Played.start(() => undefined);
    await using played = await Played.start(puts(response(307, "", { location: `${elsewhere.url}/v1/leases/x` })));
    await using it = client(played);
    await failure(it.acquire("a", { wait: 0 }), UnknownError);
    assert.equal(elsewhere.connections, 0);
  });

  test("a refusal is told as it is", async () => {
    const holders = [
      { key: "a", token: 9, holder: "other\u001b[2J", mode: "exclusive", limit: null, expires_in_ms: 5 },
    ];
    const cases = [
      [problem("held", 409, { holders, waiters: 3 }), HeldError],
      [problem("lease-mismatch", 409), RejectedError],
      [problem("unauthenticated", 401), UnauthorizedError],
      [problem("forbidden", 403), UnauthorizedError],
      [problem("lease-gone", 410, { reason: "revoked" }), LostError],
    ] as const;
    for (const [answer, kind] of cases) {
      await using played = await Played.start(puts(answer));
      await using it = client(played);
      const error = await failure<Error>(it.acquire("a", { wait: 0 }), kind);
      assert.equal(played.of("PUT").length, 1, "it is not repeated");
      if (error instanceof HeldError) {
        assert.deepEqual(error.holders[0], {
          key: "a",
          token: 9,
          holder: "other\u001b[2J",
          mode: "exclusive",
          expiresInMs: 5,
        });
        assert.ok(!error.message.includes("\u001b"), "another client's text is escaped");
      }
    }
  });

  test("a refusal after doubt still gives back", async () => {
    await using played = await Played.start(puts(hangUp, problem("held", 409, { waiters: 1 })));
    await using it = client(played);
    await failure(it.acquire("a", { wait: 0 }), HeldError);
    assert.equal((await played.nth("DELETE", 0)).leaseId, played.of("PUT")[0]?.leaseId);
  });

  test("a 429 is waited for while waiting time is left", async () => {
    for (const name of ["rate-limited", "overloaded"]) {
      await using played = await Played.start(
        puts(problem(name, 429, {}, { "retry-after": "1" }), (r) => void r.socket.write(usual(r))),
      );
      await using it = client(played);
      const begun = performance.now();
      const lease = await it.acquire("a");
      assert.ok(performance.now() - begun >= 990);
      await lease.release();
      await using strict = await Played.start(puts(problem(name, 429, {}, { "retry-after": "3" })));
      await using other = client(strict);
      const error = await failure(other.acquire("a", { wait: 1_000 }), RejectedError);
      assert.equal(error.retryAfterMs, 3_000);
      assert.equal(strict.of("PUT").length, 1);
    }
  });

  test("a wait is cut into slices that keep the place, under one id", async () => {
    await using played = await Played.start(
      puts(
        (r) => void r.socket.write(waiting(r)),
        (r) => void r.socket.write(waiting(r)),
        (r) => void r.socket.write(usual(r)),
      ),
    );
    await using it = client(played);
    const lease = await it.acquire("a");
    const sent = played.of("PUT").map(({ leaseId, body }) => [leaseId, body.wait_ms, body.keep_place]);
    assert.deepEqual(sent, [
      [lease.leaseId, 100, true],
      [lease.leaseId, 30_000, true],
      [lease.leaseId, 30_000, true],
    ]);
    await lease.release();
  });

  test("an acquire that has timed out leaves the queue first", async () => {
    await using played = await Played.start(
      puts((r) => void setTimeout(() => r.socket.write(waiting(r)), r.body.wait_ms)),
    );
    await using it = client(played);
    await failure(it.acquire("a", { wait: 300 }), TimedOutError);
    assert.equal(played.of("DELETE")[0]?.leaseId, played.of("PUT")[0]?.leaseId);
  });

  test("a place is given back when no leader is found any more", async () => {
    await using played = await Played.start(puts((r) => void r.socket.write(waiting(r)), problem("unavailable", 503)));
    await using it = client(played);
    await failure(it.acquire("a", { wait: 2_000 }), UnknownError);
    assert.equal((await played.nth("DELETE", 0)).leaseId, played.of("PUT")[0]?.leaseId);
  });

  test("an acquire that was in the queue waits for the end of an outage", async () => {
    let since = Number.POSITIVE_INFINITY;
    await using played = await Played.start(({ method }, count) => {
      if (method !== "PUT") {
        return undefined;
      }
      since = Math.min(since, performance.now());
      const isDown = performance.now() - since < 6_500;
      return count === 0 ? (r) => void r.socket.write(waiting(r)) : isDown ? problem("unavailable", 503) : undefined;
    });
    await using it = client(played);
    const lease = await it.acquire("a");
    assert.deepEqual([...new Set(played.of("PUT").map(({ leaseId }) => leaseId))], [lease.leaseId]);
    await lease.release();
  });

  test("an id that ended unseen is followed by a new one", async () => {
    await using played = await Played.start(
      puts(problem("lease-gone", 410, { reason: "expired" }), (r) => void r.socket.write(usual(r))),
    );
    await using it = client(played);
    const lease = await it.acquire("a", { wait: 5_000 });
    const [first, second] = played.of("PUT");
    assert.notEqual(first?.leaseId, second?.leaseId);
    assert.equal(second?.leaseId, lease.leaseId);
    await lease.release();
  });

  test("a grant with little time left is renewed before it is handed out", async () => {
    await using played = await Played.start(
      puts((r) => void r.socket.write(response(200, grant(r, { expires_in_ms: 4_000 })))),
    );
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 15_000 });
    assert.equal(played.of("POST").length, 1);
    assert.ok(lease.remaining > 7_500);
    await lease.release();
  });

  test("a cancelled acquire is given back, and its answer reaches nobody", async () => {
    // The answer comes when the caller has gone; on the same connection, the next request would read it.
    await using played = await Played.start(({ method }, count) =>
      method === "PUT" && count === 0
        ? (r) => void setTimeout(() => r.socket.write(response(201, grant(r))), 300)
        : undefined,
    );
    await using it = client(played);
    const controller = new AbortController();
    const acquire = it.acquire("a", { signal: controller.signal });
    const { leaseId, socket } = await played.nth("PUT", 0);
    controller.abort(new Error("enough"));
    await assert.rejects(acquire, /enough/);
    await until("its connection is closed", () => socket.destroyed);
    const lease = await it.acquire("a");
    assert.notEqual(lease.leaseId, leaseId);
    assert.equal((await played.nth("DELETE", 0)).leaseId, leaseId);
    await lease.release();
  });

  test("an answer that nobody asked for is not that to the next request", async () => {
    await using played = await Played.start(({ method }, count) =>
      method === "PUT" && count === 0
        ? (r) => {
            r.socket.write(usual(r));
            setTimeout(() => r.socket.write(response(204)), 100);
          }
        : undefined,
    );
    await using it = client(played);
    const lease = await it.acquire("a");
    await until("the stray answer ends the connection", () => played.received[0]?.socket.destroyed);
    await lease.release();
    assert.equal(played.of("DELETE").length, 1);
  });

  test("a client that was cancelled beforehand sends nothing", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    await assert.rejects(it.acquire("a", { signal: AbortSignal.abort(new Error("no")) }), /no/);
    assert.equal(played.connections, 0);
  });

  test("the leader that an answer names is asked next, and passed over once it fails", async () => {
    await using leader = await Played.start(({ method }, count) =>
      method === "DELETE" && count === 0 ? hangUp : undefined,
    );
    await using follower = await Played.start((request) =>
      request.method === "PUT" ? response(201, grant(request), { "ringfence-leader": leader.url }) : undefined,
    );
    await using it = client(follower);
    const first = await it.acquire("a");
    await until("the leader was met", () => leader.received.some(({ path }) => path === "/livez"));
    await until("the leader is asked", async () => {
      await (await it.acquire("b")).release().catch(() => undefined);
      return leader.of("DELETE").length > 0;
    });
    await first.release();
    assert.ok(follower.of("DELETE").length > 0, "the follower was asked after the leader had failed");
  });

  test("a leader that does not answer is not asked", async () => {
    await using leader = await Played.start(() => () => {});
    await using played = await Played.start((request) =>
      request.method === "PUT" ? response(201, grant(request), { "ringfence-leader": leader.url }) : undefined,
    );
    await using it = client(played);
    for (const key of ["a", "b", "c"]) {
      await (await it.acquire(key)).release();
    }
    await until("it was probed", () => leader.received.length > 0);
    assert.deepEqual([...new Set(leader.received.map(({ path }) => path))], ["/livez"]);
  });

  test("the answer of another cluster is none", async () => {
    const named = (cluster: string) => ({ "ringfence-cluster": cluster });
    await using own = await Played.start((request, count) =>
      request.method === "PUT" && count > 0
        ? problem("unavailable", 503, {}, named("one"))
        : response(201, grant(request), named("one")),
    );
    await using other = await Played.start((request) => response(201, grant(request), named("two")));
    await using it = client(own, other);
    await it.acquire("a");
    await failure(it.acquire("b", { wait: 0 }), UnavailableError);
    assert.ok(other.of("PUT").length > 0, "it was asked, and granted");
    assert.equal(other.of("DELETE").length, 0, "it might lead back to the own cluster");
  });

  test("the largest token is exact", async () => {
    const token = Number.MAX_SAFE_INTEGER;
    await using played = await Played.start(puts((r) => void r.socket.write(response(201, grant(r, { token })))));
    await using it = client(played);
    const lease = await it.acquire("ä/b c");
    assert.equal(lease.token, token);
    assert.deepEqual(lease.headers(), {
      "Ringfence-Key": "%C3%A4%2Fb%20c",
      "Ringfence-Token": "9007199254740991",
      "Ringfence-Fence": "7",
    });
    await lease.release();
  });

  test("a release in doubt goes on in the background, and close waits for it", async () => {
    await using played = await Played.start(({ method }, count) =>
      method === "DELETE" && count < 8 ? hangUp : undefined,
    );
    const it = client(played);
    const lease = await it.acquire("a");
    const released = lease.release();
    assert.equal(lease.release(), released, "a repeat is the same");
    await Promise.allSettled([released]);
    await it.close();
    assert.ok(played.of("DELETE").length > 8);
    assert.equal(lease.state, "released");
  });

  test("a client that is closed cancels its acquires and takes no others", async () => {
    await using played = await Played.start(
      puts((r) => void pause(60_000, undefined, { ref: false }).then(() => r.socket.end())),
    );
    const it = client(played);
    const acquire = failure(it.acquire("a"), Error);
    await played.nth("PUT", 0);
    await it.close();
    assert.equal((await acquire).message, "the client is closed");
    assert.equal((await failure(it.acquire("a"), Error)).message, "the client is closed");
    assert.equal(played.of("DELETE").length, 1);
  });
});
