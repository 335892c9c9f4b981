/** Calls that share a request, against a played server. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { HeldError, type Lease, LostError, RejectedError, UnauthorizedError } from "../src/index.js";
import {
  client,
  isBatch,
  isRenewal,
  one,
  operations,
  Played,
  problem,
  problemBody,
  type Received,
  released,
  response,
  results,
  type Script,
  usual,
  waiting,
} from "./support/played.js";
import { failure, until } from "./support/until.js";

const COUNT = 50;

/** Answers batches, one after the other, the last for ever; anything else as usual. */
function batches(...answers: readonly (((request: Received) => string | undefined) | string)[]): Script {
  let count = 0;
  return (request) => {
    if (!isBatch(request)) {
      return undefined;
    }
    const answer = answers[Math.min(count, answers.length - 1)];
    count += 1;
    return typeof answer === "function" ? (answer(request) ?? (() => {})) : answer;
  };
}

function acquires(it: ReturnType<typeof client>, options: object = {}, count = COUNT): Promise<Lease>[] {
  return Array.from({ length: count }, (_, n) => it.acquire(`k${n}`, options));
}

/** The requests of this method that are no batches. */
function alone({ received }: Played, method: string): Received[] {
  return received.filter((request) => request.method === method && !isBatch(request));
}

/** How many operations each batch has. */
function sizes(played: Played): number[] {
  return played.received.filter(isBatch).map((request) => operations(request).length);
}

describe("batch", { concurrency: 4 }, () => {
  test("the calls of one turn are one request, and a call alone is itself", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const leases = await Promise.all(acquires(it));
    assert.deepEqual(sizes(played), [COUNT]);
    const sent = played.received.filter(isBatch).flatMap(operations);
    assert.deepEqual(
      leases.map(({ leaseId, keys }) => [leaseId, keys[0]]),
      sent.map(({ leaseId, body }) => [leaseId, body.keys[0].key]),
    );
    const [first, second, ...others] = leases as [Lease, Lease, ...Lease[]];
    await Promise.all([first.renew(30_000), second.release(), ...others.map((lease) => lease.release())]);
    assert.deepEqual(sizes(played), [COUNT, COUNT]);
    assert.deepEqual(operations(played.received.filter(isBatch)[1] as Received)[0]?.body, {
      lease_id: first.leaseId,
      ttl_ms: 30_000,
    });
    await first.release();
    assert.deepEqual([sizes(played).length, alone(played, "DELETE").length], [2, 1]);
  });

  test("one that is cancelled leaves the others alone, and is given back", async () => {
    let batch: Received | undefined;
    await using played = await Played.start(
      batches(
        (request) => {
          batch = request;
          return undefined;
        },
        (request) => usual(request),
      ),
    );
    await using it = client(played);
    const controller = new AbortController();
    const cancelled = failure(it.acquire("cancelled", { signal: controller.signal }), Error);
    const others = acquires(it, {}, COUNT - 1);
    const request = await until("the batch arrives", () => batch);
    controller.abort(new Error("enough"));
    assert.equal((await cancelled).message, "enough");
    request.socket.write(usual(request));
    const leases = await Promise.all(others);
    assert.ok(!request.socket.destroyed);
    const [id] = operations(request).map(({ leaseId }) => leaseId);
    await until("it is given back", () => played.of("DELETE").some(({ leaseId }) => leaseId === id));
    await Promise.all(leases.map((lease) => lease.release()));
    assert.equal(new Set(leases.map(({ leaseId }) => leaseId)).size, COUNT - 1);
  });

  test("a request whose calls are all cancelled ends, and all are given back", async () => {
    await using played = await Played.start(batches(() => undefined, usual));
    await using it = client(played);
    const controller = new AbortController();
    const all = acquires(it, { signal: controller.signal });
    const batch = await until("the batch arrives", () => played.received.find(isBatch));
    controller.abort();
    assert.ok((await Promise.allSettled(all)).every(({ status }) => status === "rejected"));
    await until("its connection is closed", () => batch.socket.destroyed);
    const ids = operations(batch).map(({ leaseId }) => leaseId);
    await until("all are given back", () => {
      const given = played.received.filter((request) => isBatch(request) && request !== batch).flatMap(operations);
      return given.filter(({ method, leaseId }) => method === "DELETE" && ids.includes(leaseId)).length === COUNT;
    });
  });

  test("a lost answer leaves each call in doubt, and each repeats its own id", async () => {
    for (const answer of [
      "",
      "HTTP/1.1 200 .\r\ncontent-length: 100\r\n\r\n{",
      response(200, { results: [] }),
      response(200, "<html>"),
    ]) {
      await using played = await Played.start(
        batches((request) => {
          if (answer.length < 60) {
            request.socket.end(answer);
            return undefined;
          }
          return answer;
        }),
      );
      await using it = client(played);
      const leases = await Promise.all(acquires(it));
      const [batch] = played.received.filter(isBatch);
      const ids = operations(batch as Received).map(({ leaseId }) => leaseId);
      assert.deepEqual(leases.map(({ leaseId }) => leaseId).sort(), ids.sort());
      assert.deepEqual([...new Set(alone(played, "PUT").map(({ leaseId }) => leaseId))].sort(), ids);
      await released(...leases);
    }
  });

  test("a batch that another node takes after the first one's failure is one request there, too", async () => {
    await using first = await Played.start(
      ({ socket }) =>
        () =>
          void socket.destroy(),
    );
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const leases = await Promise.all(acquires(it));
    assert.deepEqual([sizes(first), sizes(second)], [[COUNT], [COUNT]]);
    await Promise.all(leases.map((lease) => lease.release()));
  });

  test("a place in the queue within a batch is waited for with a request of its own", async () => {
    await using played = await Played.start(
      batches((request) =>
        results(request, (operation) =>
          operation.index === 3
            ? { status: 202, body: { lease_id: operation.leaseId, state: "waiting", ahead: 0 } }
            : one(operation),
        ),
      ),
    );
    await using it = client(played);
    const leases = await Promise.all(acquires(it));
    const [batch] = played.received.filter(isBatch);
    assert.ok(
      operations(batch as Received).every(({ body }) => body.keep_place === true && body.wait_ms === undefined),
    );
    const [put, ...others] = alone(played, "PUT");
    assert.deepEqual(
      [put?.leaseId, put?.body.wait_ms, put?.body.keep_place, others.length],
      [leases[3]?.leaseId, 30_000, true, 0],
    );
    await released(...leases);
  });

  test("each operation has a result of its own", async () => {
    const refusals = [
      ["held", 409, HeldError],
      ["lease-mismatch", 409, RejectedError],
      ["forbidden", 403, UnauthorizedError],
      ["lease-gone", 410, LostError],
    ] as const;
    await using played = await Played.start(
      batches((request) =>
        results(request, (operation) => {
          const [name, status] = refusals[operation.index] ?? [];
          const more = { reason: "revoked", holders: [], waiters: operation.index };
          return name === undefined ? one(operation) : { status, body: problemBody(name, status, more) };
        }),
      ),
    );
    await using it = client(played);
    const all = acquires(it, { wait: 0 });
    for (const [index, [, , kind]] of refusals.entries()) {
      await failure<Error>(all[index] as Promise<Lease>, kind);
    }
    const leases = await Promise.all(all.slice(refusals.length));
    assert.equal(leases.length, COUNT - refusals.length);
    assert.deepEqual(sizes(played), [COUNT]);
    assert.equal(alone(played, "DELETE").length, 0, "what was refused is not given back");
    await released(...leases);
  });

  test("what a batch has no room for, and a batch that is refused as a whole, is sent alone", async () => {
    const one413 = (request: Received) =>
      results(request, (operation) =>
        operation.index === 3 ? { status: 413, body: problemBody("too-large", 413) } : one(operation),
      );
    const whole = [one413, problem("too-large", 413), problem("invalid", 400), problem("forbidden", 403)];
    for (const [index, answer] of whole.entries()) {
      await using played = await Played.start(batches(answer));
      await using it = client(played);
      const leases = await Promise.all(acquires(it));
      assert.equal(alone(played, "PUT").length, index === 0 ? 1 : COUNT);
      assert.deepEqual(sizes(played), [COUNT]);
      await released(...leases);
    }
  });

  test("a batch that a proxy refuses is in doubt, and then sent alone", async () => {
    await using played = await Played.start(batches(response(413, "<html>too large</html>")));
    await using it = client(played);
    const leases = await Promise.all(acquires(it));
    assert.equal(new Set(alone(played, "PUT").map(({ leaseId }) => leaseId)).size, COUNT);
    await released(...leases);
  });

  test("a 429 to a batch is waited for by each of its calls", async () => {
    await using played = await Played.start(
      batches(problem("overloaded", 429, {}, { "retry-after": "1" }), (request) => usual(request)),
    );
    await using it = client(played);
    const begun = performance.now();
    const leases = await Promise.all(acquires(it));
    assert.ok(performance.now() - begun >= 990);
    assert.ok(alone(played, "PUT").length <= 2, "they are not sent alone");
    await released(...leases);
  });

  test("two requests are under way at most, and what comes meanwhile shares the next", async () => {
    const held: Received[] = [];
    let isHeld = true;
    await using played = await Played.start((request) =>
      isHeld && request.method !== "GET" ? () => void held.push(request) : undefined,
    );
    await using it = client(played);
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    const all: Promise<Lease>[] = [];
    for (let n = 0; n < 20; n += 1) {
      all.push(it.acquire(`t${n}`, { wait: 0 }));
      await turn();
    }
    await until("two have arrived", () => held.length === 2);
    isHeld = false;
    for (const request of held) {
      request.socket.write(usual(request));
    }
    const leases = await Promise.all(all);
    assert.equal(held.length, 2);
    assert.ok(
      sizes(played).some((size) => size >= 10),
      `${sizes(played)}`,
    );
    await released(...leases);
  });

  test("what waits for a request that fails goes elsewhere at once", async () => {
    await using first = await Played.start((request) => (request.path === "/livez" ? undefined : () => {}));
    await using second = await Played.start(() => undefined);
    await using it = client(first, second);
    const all = [it.acquire("a", { wait: 0 })];
    for (let n = 0; n < 20; n += 1) {
      await new Promise((resolve) => setImmediate(resolve));
      all.push(it.acquire(`b${n}`, { wait: 0 }));
    }
    const leases = await Promise.all(all);
    assert.equal(first.received.filter(({ method }) => method !== "GET").length, 2);
    await released(...leases);
  });

  test("300 waits keep their places on 64 connections, and renewals and releases go on", async () => {
    const queued = new Set<string>();
    let isOver = false;
    const place = (leaseId: string) => ({ lease_id: leaseId, state: "waiting", ahead: 0 });
    const isFree = (operation: Received) =>
      isOver || operation.body.keys === undefined || operation.body.keys[0].key === "own";
    await using played = await Played.start((request) => {
      if (isBatch(request)) {
        return results(request, (operation) => {
          if (isFree(operation)) {
            return one(operation);
          }
          queued.add(operation.leaseId);
          return { status: 202, body: place(operation.leaseId) };
        });
      }
      if (request.method !== "PUT" || isFree(request)) {
        return request.path.startsWith("/v1/keys/") ? problem("forbidden", 403) : undefined;
      }
      queued.add(request.leaseId);
      return request.body.wait_ms > 1_000
        ? async () => {
            await until("the keys are free", () => isOver);
            request.socket.write(usual(request));
          }
        : waiting(request);
    });
    await using it = client(played);
    const own = await it.acquire("own", { ttl: 9_000 });
    const all = acquires(it, {}, 300);
    // Otherwise a failure below would be hidden by theirs.
    void Promise.allSettled(all);
    await until("all are in the queue", () => queued.size === 300);
    const waits = () =>
      new Set(
        played
          .of("PUT")
          .filter(({ body }) => body.wait_ms > 1_000)
          .map(({ leaseId }) => leaseId),
      );
    await until("those without a connection ask again", () => {
      const asked = new Map<string, number>();
      for (const { leaseId } of played.received.filter(isBatch).flatMap(operations)) {
        asked.set(leaseId, (asked.get(leaseId) ?? 0) + 1);
      }
      const waiting = waits();
      return [...queued].every((id) => waiting.has(id) || (asked.get(id) ?? 0) >= 3);
    });
    assert.ok(waits().size < 64, `${waits().size}`);
    await until("the own lease is renewed twice", () => played.received.filter(isRenewal).length >= 2);
    const renewals = played.received.filter(isRenewal);
    assert.equal(new Set(renewals.map(({ socket }) => socket)).size, 1, "on a connection of their own");
    assert.ok(!played.received.some((request) => !isRenewal(request) && request.socket === renewals[0]?.socket));
    await own.release();
    assert.ok(played.connections <= 66, `${played.connections} connections`);
    isOver = true;
    const leases = await Promise.all(all);
    assert.equal(new Set(leases.map(({ leaseId }) => leaseId)).size, 300);
    assert.ok(played.connections <= 66, `${played.connections} connections`);
    await Promise.all(leases.map((lease) => lease.release()));
  });
});
