/** What becomes of leases that are dropped, kept, released and closed, against a played server. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { describe, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { ClosedError, LostError, StaleError, TimedOutError, UnavailableError } from "../src/index.js";
import {
  client,
  isRenewal,
  Played,
  problem,
  type Received,
  released,
  renewals,
  response,
  usual,
  waiting,
  warned,
} from "./support/played.js";
import { failure, until } from "./support/until.js";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

/** Runs a program with a client of this server to its end. */
async function program(played: Played, text: string): Promise<{ status: number | null; said: string }> {
  const index = new URL("../src/index.js", import.meta.url).href;
  const whole = `import { Client } from "${index}"; const client = new Client({ urls: ["${played.url}"] });\n${text}`;
  const child = spawn(process.execPath, ["--expose-gc", "--input-type=module", "-e", whole]);
  let said = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (chunk: string) => {
      said += chunk;
    });
  }
  const [status] = await once(child, "close");
  return { status, said };
}

describe("handles", { concurrency: 4 }, () => {
  test("a lease that was dropped is released, with a warning", async () => {
    await using played = await Played.start(() => undefined);
    const { warnings, it } = warned(played);
    await it.acquire("dropped");
    await until("it is released", () => {
      collect();
      return played.of("DELETE").length === 1;
    });
    assert.deepEqual(warnings, [
      'RINGFENCE_DROPPED the lease of "dropped" with token 7 was dropped: it is released now',
    ]);
    await it.close();
  });

  test("a lease is not dropped while somebody may wait for its loss, nor under work", async () => {
    await using played = await Played.start(() => undefined);
    const { warnings, it } = warned(played);
    const { signal } = await it.acquire("a", { ttl: 3_000 });
    const lost = (await it.acquire("b", { ttl: 3_000 })).lost;
    const works = it.using("c", { ttl: 3_000 }, async () => {
      await until("all are renewed", () => {
        collect();
        return played.received.filter(isRenewal).length >= 5;
      });
    });
    await works;
    assert.deepEqual([signal.aborted, played.of("DELETE").length], [false, 1]);
    const kept = (key: string) =>
      new RegExp(`^RINGFENCE_DROPPED the lease of "${key}" .*kept until the client is closed`);
    assert.equal(warnings.length, 2, "once for each, and not for work");
    for (const key of ["a", "b"]) {
      assert.ok(warnings.some((warning) => kept(key).test(warning)));
    }
    await it.close();
    assert.equal(played.of("DELETE").length, 3);
    assert.equal(await lost, "released");
    assert.equal(signal.reason.reason, "released");
  });

  test("a lease that renews keeps the process alive, and one that is not to does not", async () => {
    await using played = await Played.start(
      renewals((_, count) => (count < 2 ? undefined : problem("forbidden", 403))),
    );
    const waits = await program(
      played,
      `const lease = await client.acquire("a", { ttl: 900 });
       await new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
       console.log(lease.reason);`,
    );
    assert.equal(waits.status, 0);
    assert.match(waits.said, /^unconfirmed$/m);
    assert.match(waits.said, /RINGFENCE_RENEWAL.*forbidden it is/, "by default it is a warning of the process");
    for (const text of ["(await client.acquire('b')).unref()", "(await client.acquire('c', { renew: false })).lost"]) {
      assert.deepEqual(await program(played, `${text}; process.on("exit", () => console.log("ends"));`), {
        status: 0,
        said: "ends\n",
      });
    }
  });

  test("hold-at-least outlives an outage at the release", async () => {
    let isDown = false;
    await using played = await Played.start((request) =>
      isDown ? problem("unavailable", 503) : request.path === "/livez" ? response(200, "{}") : undefined,
    );
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 9_000, holdAtLeast: 16_000 });
    const begun = performance.now();
    isDown = true;
    await failure(lease.release(), UnavailableError);
    assert.equal(lease.state, "released");
    isDown = false;
    const renewal = await until("it is held for the rest", () =>
      played
        .of("POST")
        .find(({ path, body }) => path.endsWith("/renew") && !isRenewal({ path } as Received) && body.ttl_ms < 11_500),
    );
    assert.ok(renewal.body.ttl_ms > 100);
    assert.deepEqual(played.of("DELETE"), []);
    await until("it is released", () => played.of("DELETE").length === 1);
    assert.ok(performance.now() - begun >= 15_900);
  });

  test("hold-at-least is renewed as before while the one renewal is refused, and then released", async () => {
    await using played = await Played.start((request) =>
      request.method === "POST" && !isRenewal(request) ? problem("forbidden", 403) : undefined,
    );
    await using it = client(played);
    const lease = await it.acquire("a", { ttl: 1_000, holdAtLeast: 3_000 });
    await lease.release().catch(() => undefined);
    const before = played.received.filter(isRenewal).length;
    await until("it is released", () => played.of("DELETE").length === 1);
    assert.ok(played.received.filter(isRenewal).length > before + 1);
  });

  test("hold-at-least asks for what is left, also if that is less than the time-to-live, or if its longest hold is over", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    await it.using("a", { ttl: 15_000, holdAtLeast: 3_000 }, () => undefined);
    const [renewal] = played.of("POST");
    assert.ok(renewal?.body.ttl_ms > 0 && renewal?.body.ttl_ms <= 3_000);
    const lease = await it.acquire("b", { maxHold: 100, holdAtLeast: 5_000 });
    assert.equal(await lease.lost, "max-hold");
    await failure(lease.release(), LostError);
    assert.equal(played.of("POST").length, 2);
    await until("the first one is released", () => played.of("DELETE").length === 1);
    assert.notEqual(played.of("DELETE")[0]?.leaseId, lease.leaseId);
  });

  test("close releases what the client holds, but not what is left to its id, and says what it could not", async () => {
    let isDown = false;
    await using played = await Played.start(({ method }) => (method === "DELETE" && isDown ? () => {} : undefined));
    const { it } = warned(played);
    const lease = await it.acquire("a");
    const left = await it.acquire("b");
    left.detach();
    let isWorking = false;
    const works = failure(
      it.using("c", (_, signal) => {
        isWorking = true;
        return once(signal, "abort");
      }),
      LostError,
    );
    await until("it works", () => isWorking);
    assert.deepEqual(await it.close(), { left: [] });
    assert.deepEqual([lease.state, left.state, (await works).reason], ["released", "held", "released"]);
    assert.equal(played.of("DELETE").length, 2);
    await failure(it.acquire("d"), ClosedError);
    assert.equal(played.of("PUT").length, 3);

    isDown = true;
    const { warnings, it: other } = warned(played);
    const kept = await other.acquire(["x", "y"]);
    await using third = client(played);
    const gone = await third.acquire("z");
    assert.deepEqual(await other.close({ within: 300 }), { left: [["x", "y"]] });
    assert.equal(kept.state, "released");
    assert.deepEqual(warnings, ['RINGFENCE_CLOSE not released when the client was closed: "x", "y"']);
    assert.equal(await other.close(), await other.close(), "a repeat is the same");
    await until(
      "nothing goes on",
      () => played.of("DELETE").every(({ socket }) => socket.destroyed || !isDown) || undefined,
    );
    isDown = false;
    await released(gone);
  });

  test("a call ends within its timeout, and what it may have done is given back", async () => {
    await using played = await Played.start((request) => (request.path === "/livez" ? undefined : () => {}));
    const it = client(played);
    const error = await failure(it.acquire("a", { timeout: 200 }), TimedOutError);
    assert.equal(error.reason, "timeout");
    assert.equal((await played.nth("DELETE", 0)).leaseId, played.of("PUT")[0]?.leaseId);
    assert.equal((await failure(it.tryAcquire("a", { timeout: 200 }), TimedOutError)).reason, "timeout");
    const id = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10";
    assert.equal((await failure(it.adopt(id, { timeout: 200 }), TimedOutError)).reason, "timeout");
    assert.equal((await it.close({ within: 0 })).left.length, 2);

    await using mute = await Played.start(({ method }, count) =>
      method === "POST" || (method === "DELETE" && count === 0) ? () => {} : undefined,
    );
    const { it: other } = warned(mute);
    const lease = await other.acquire("a");
    assert.equal((await failure(lease.renew(undefined, { timeout: 200 }), TimedOutError)).reason, "timeout");
    assert.equal(lease.state, "held");
    assert.equal((await failure(lease.release({ timeout: 200 }), TimedOutError)).reason, "timeout");
    assert.deepEqual(await other.close({ within: 60_000 }), { left: [] }, "the release went on");
    await using busy = await Played.start(({ method }) =>
      method === "PUT" ? (r) => void setTimeout(() => r.socket.write(waiting(r)), r.body.wait_ms) : undefined,
    );
    await using third = client(busy);
    assert.equal((await failure(third.acquire("a", { wait: 200 }), TimedOutError)).reason, "wait");
  });

  test("a leader campaigns again after what its work threw when the lease was lost", async () => {
    let terms = 0;
    await using played = await Played.start(({ method }) => (method === "DELETE" && terms === 3 ? gone() : undefined));
    const { warnings, it } = warned(played);
    const told: unknown[] = [];
    const onError = (error: unknown) => {
      told.push((error as Error).message);
      throw new Error("onError itself");
    };
    const work = async (_: unknown, signal: AbortSignal) => {
      terms += 1;
      if (terms === 1) {
        await once(signal, "abort");
        throw new Error("its rollback failed");
      }
      if (terms === 2) {
        throw new StaleError("the storage knows first");
      }
      if (terms === 3) {
        throw new Error("of a lease that was revoked unseen");
      }
      return "done";
    };
    assert.equal(await it.lead("leader", work, { maxHold: 500, onError }), "done");
    assert.deepEqual(told, ["its rollback failed", "the storage knows first", "of a lease that was revoked unseen"]);
    assert.deepEqual(warnings, Array(3).fill("RINGFENCE_CALLBACK onError has failed: Error: onError itself"));
    terms = 1;
    assert.equal(await it.lead("leader", work), "done");
    assert.match(warnings[3] ?? "", /^RINGFENCE_LEAD the lease of a leader was lost: StaleError/);
    const own = new Error("own");
    assert.equal(
      await failure(
        it.lead("leader", () => Promise.reject(own)),
        Error,
      ),
      own,
    );
    let isLeading = false;
    const leads = failure(
      it.lead("leader", (_, signal) => {
        isLeading = true;
        return once(signal, "abort");
      }),
      ClosedError,
    );
    await until("it leads", () => isLeading);
    await it.close();
    await leads;
  });

  test("many calls share one signal without a warning, and leave no listener", async () => {
    await using played = await Played.start(() => undefined);
    await using it = client(played);
    const warnings: Error[] = [];
    const warn = (warning: Error) => void (warning.name === "MaxListenersExceededWarning" && warnings.push(warning));
    process.on("warning", warn);
    const { signal } = new AbortController();
    const all = Array.from({ length: 50 }, (_, n) => it.using(`k${n}`, { signal }, () => undefined));
    assert.ok(getEventListeners(signal, "abort").length <= 1);
    await Promise.all(all);
    assert.equal(getEventListeners(signal, "abort").length, 0);
    const leads = new AbortController();
    let begun = 0;
    const leading = Array.from({ length: 20 }, (_, n) =>
      it.lead(
        `l${n}`,
        (_, signal) => {
          begun += 1;
          return once(signal, "abort").then(() => n);
        },
        { signal: leads.signal },
      ),
    );
    await until("all lead", () => begun === 20);
    leads.abort();
    assert.deepEqual(
      await Promise.all(leading),
      Array.from({ length: 20 }, (_, n) => n),
    );
    await new Promise((resolve) => setImmediate(resolve));
    process.off("warning", warn);
    assert.deepEqual(warnings, []);
  });

  test("a renewal that the cluster refuses is told once, and again after it was allowed", async () => {
    let isAllowed = false;
    const one = (request: Received) => {
      const results = (request.body.lease_ids as string[]).map(() => ({
        status: 403,
        body: { type: "urn:ringfence:problem:forbidden", title: "", status: 403, detail: "no right" },
      }));
      return response(200, { results });
    };
    await using played = await Played.start(renewals((request) => (isAllowed ? usual(request) : one(request))));
    const { warnings, it } = warned(played);
    const lease = await it.acquire("a", { ttl: 3_000 });
    await until("it is told", () => warnings.length === 1);
    const asked = () => played.received.filter(isRenewal).length;
    await until("it is refused again", () => asked() >= 2);
    assert.equal(warnings[0], "RINGFENCE_RENEWAL leases are not renewed: no right");
    isAllowed = true;
    const since = asked();
    await until("it is renewed", () => asked() > since + 1);
    isAllowed = false;
    await until("it is told again", () => warnings.length === 2);
    await released(lease);
    await it.close();
  });
});

function gone(): string {
  return problem("lease-gone", 410, { reason: "revoked" });
}
