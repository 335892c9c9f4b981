/** Work under a lease, against a played server. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { LostError, UnknownError } from "../src/index.js";
import { client, hang, Played, problem, renewals, type Script } from "./support/played.js";
import { failure, until } from "./support/until.js";

describe("working", { concurrency: 4 }, () => {
  test("the error of the work is passed on, also if the lease is lost or the release fails", async () => {
    const wrong = new Error("the work failed");
    const scripts: Script[] = [
      () => undefined,
      ({ method }) => (method === "DELETE" ? problem("lease-gone", 410, { reason: "expired" }) : undefined),
      ({ method }) => (method === "DELETE" ? problem("forbidden", 403) : undefined),
    ];
    for (const script of scripts) {
      await using played = await Played.start(script);
      await using it = client(played);
      const error = await failure(
        it.using("a", () => Promise.reject(wrong)),
        Error,
      );
      assert.equal(error, wrong);
      assert.ok(played.of("DELETE").length > 0);
      // What is not released for good is repeated in the background, which close need not wait for here.
      void it.close();
      break;
    }
    await using played = await Played.start(renewals(hang));
    await using it = client(played);
    const lost = it.using("a", { ttl: 500 }, async (lease) => {
      await lease.lost;
      throw wrong;
    });
    assert.equal(await failure(lost, Error), wrong);
  });

  test("a lease that is lost under work that succeeds is an error, and is released all the same", async () => {
    await using played = await Played.start(renewals(hang));
    await using it = client(played);
    const error = await failure(
      it.using("a", { ttl: 500 }, (lease) => lease.lost),
      LostError,
    );
    assert.equal(error.reason, "unconfirmed");
    assert.equal(played.of("DELETE").length, 1);
    await using gone = await Played.start(({ method }) =>
      method === "DELETE" ? problem("lease-gone", 410, { reason: "revoked" }) : undefined,
    );
    await using other = client(gone);
    assert.equal(
      (
        await failure(
          other.using("a", () => 7),
          LostError,
        )
      ).reason,
      "revoked",
    );
  });

  test("work that succeeded is not failed by a release in doubt", async () => {
    await using played = await Played.start(({ method }, count) =>
      method === "DELETE" && count < 8 ? ({ socket }) => void socket.destroy() : undefined,
    );
    await using it = client(played);
    assert.equal(await it.using("a", () => 7), 7);
    await it.close();
    assert.ok(played.of("DELETE").length > 8);
  });

  test("`await using` releases, and hides no error of the block", async () => {
    await using played = await Played.start(({ method }) =>
      method === "DELETE" ? problem("lease-gone", 410, { reason: "expired" }) : undefined,
    );
    await using it = client(played);
    const block = async () => {
      await using lease = await it.acquire("a");
      throw new Error(lease.state);
    };
    await assert.rejects(block, { name: "Error", message: "held" });
    assert.equal(played.of("DELETE").length, 1);
  });

  test("a lease that is held at least for a time outlives its release", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const begun = performance.now();
    const lease = await it.acquire("a", { ttl: 3_000, holdAtLeast: 6_000 });
    await lease.release();
    assert.equal(lease.state, "released");
    const [renewal] = played.of("POST");
    assert.ok(renewal?.body.ttl_ms > 3_000 && renewal?.body.ttl_ms <= 6_000, "also if this process ends now");
    assert.equal(played.of("DELETE").length, 0);
    await until("it is released", () => played.of("DELETE").length === 1);
    assert.ok(performance.now() - begun >= 5_990);
  });

  test("a leader works until its work is done, and campaigns again when it has lost", async () => {
    await using played = await Played.start(
      renewals((_, count) => (count === 0 ? problem("forbidden", 403) : undefined)),
    );
    await using it = client(played);
    let terms = 0;
    const order: string[] = [];
    const result = await it.lead(
      "leader",
      async (_, signal) => {
        terms += 1;
        if (terms > 1) {
          return "done";
        }
        await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
        order.push(`told, after ${played.of("DELETE").length} releases`);
        throw signal.reason;
      },
      { ttl: 6_000, maxHold: 1_000 },
    );
    assert.equal(result, "done");
    assert.deepEqual(order, ["told, after 0 releases"], "the key is released only after the work has ended");
    assert.equal(played.of("PUT").length, 2);
  });

  test("a leader is stopped by its signal, and its own errors are passed on", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const controller = new AbortController();
    const leading = it.lead(
      "leader",
      async (lease, signal) => {
        setTimeout(() => controller.abort(new Error("enough")), 10);
        await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
        return `${lease.state}, ${signal.reason.message}`;
      },
      { signal: controller.signal },
    );
    assert.equal(await leading, "held, enough");
    // An error of another call of the work is not an outage of the campaign.
    const own = new UnknownError("of the work", "x");
    assert.equal(
      await failure(
        it.lead("leader", () => Promise.reject(own)),
        Error,
      ),
      own,
    );
  });

  test("a leader goes on campaigning during an outage", async () => {
    let isDown = true;
    await using played = await Played.start(({ method }) =>
      method === "PUT" && isDown ? problem("unavailable", 503) : undefined,
    );
    await using it = client(played);
    const told: string[] = [];
    const onError = (error: unknown) => {
      told.push((error as Error).name);
      isDown = false;
    };
    assert.equal(await it.lead("leader", () => 7, { onError }), 7);
    assert.deepEqual(told, ["UnavailableError"]);
  });

  test("an adopted lease is renewed, and released once", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 6_000 });
    const id = lease.detach();
    await lease.release();
    assert.equal(played.of("DELETE").length, 0, "it is left to its id");
    const adopted = await it.adopt(id);
    assert.equal(adopted.leaseId, id);
    assert.equal(adopted.token, lease.token);
    await adopted.release();
    await adopted.release();
    assert.equal(played.of("DELETE").length, 1);
  });
});
