/** What a program is told of its leases: hooks, warnings, and who has a key. Against a played server. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, TimedOutError, UnavailableError } from "../src/index.js";
import { client, Played, problem, response, waiting, warned } from "./support/played.js";
import { failure, until } from "./support/until.js";

test("hooks see what becomes of leases, and one that fails stops nothing", async () => {
  let puts = 0;
  await using played = await Played.start(({ method, path }, count) => {
    if (method === "PUT") {
      puts += 1;
      return puts === 2 ? (r) => void r.socket.write(waiting(r)) : undefined;
    }
    return path === "/v1/renew" && count === 0 ? problem("forbidden", 403) : undefined;
  });
  const seen: string[] = [];
  const warnings: string[] = [];
  const see = (name: string) => (subject: unknown, more?: unknown) => {
    const keys = Array.isArray(subject) ? subject : (subject as { keys: string[] }).keys;
    seen.push(`${name} ${keys} ${typeof more === "number" ? "after a while" : (more ?? "")}`.trim());
    if (name === "lost") {
      throw new Error("the hook itself");
    }
    return name === "released" ? Promise.reject(new Error("and later")) : undefined;
  };
  const names = ["waited", "granted", "renewed", "failed", "lost", "released"];
  const hooks = Object.fromEntries(names.map((name) => [name, see(name)]));
  const onWarning = (code: string, message: string) => void warnings.push(`${code} ${message}`);
  await using it = new Client({ urls: [played.url], hooks, onWarning });
  const lease = await it.acquire("a", { ttl: 900, maxHold: 1_500 });
  const other = await it.acquire("b");
  await lease.lost;
  await other.release();
  await until("all are seen", () => warnings.filter((text) => text.includes("CALLBACK")).length === 2);
  assert.deepEqual(
    seen.filter((text, index) => seen.indexOf(text) === index),
    [
      "granted a after a while",
      "waited b after a while",
      "granted b after a while",
      "failed a forbidden it is",
      "renewed a",
      "lost a max-hold",
      "released b",
    ],
  );
  assert.deepEqual(
    warnings.filter((text) => text.includes("CALLBACK")),
    [
      'RINGFENCE_CALLBACK the hook `lost` has failed for "a": Error: the hook itself',
      'RINGFENCE_CALLBACK the hook `released` has failed for "b": Error: and later',
    ],
  );
});

test("an acquire that waits for long says for whom, and who waits as a candidate says nothing", async () => {
  let reads = 0;
  const view = (token: number) => ({ key: "a", holders: [{ token, holder: "one" }], waiters: [] });
  await using played = await Played.start((request) => {
    if (request.path === "/v1/keys/a") {
      reads += 1;
      return response(200, view(reads === 1 ? 7 : 8));
    }
    if (request.path.startsWith("/v1/keys/")) {
      return problem("forbidden", 403);
    }
    if (request.method !== "PUT" || request.body.holder !== "waits") {
      return undefined;
    }
    return request.body.wait_ms > 0
      ? (r) => void setTimeout(() => r.socket.write(waiting(r)), r.body.wait_ms)
      : waiting(request);
  });
  const { warnings, it } = warned(played);
  const lease = await it.acquire("a");
  const { signal } = new AbortController();
  const all = [it.acquire("a", { holder: "waits" }), it.acquire(["b", "a"], { holder: "waits" })];
  all.push(it.lead("c", () => lease, { holder: "waits", signal }));
  const ends = Promise.allSettled(all);
  await until("both are told", () => warnings.length === 2);
  assert.deepEqual(warnings.sort(), [
    'RINGFENCE_QUEUE an acquire has waited for 5 s for "a"; "a" is held by "one" with token 7, which this client itself holds',
    'RINGFENCE_QUEUE an acquire has waited for 5 s for "b", "a"; "a" is held by "one" with token 8',
  ]);
  await it.close();
  await ends;
  assert.equal(warnings.length, 2);
});

test("whether a key is held is read, and an outage is no answer", async () => {
  let holders: object[] = [{ token: 7, holder: null }];
  await using played = await Played.start(({ path }) =>
    path === "/v1/keys/a/b%20c" ? response(200, { key: "a/b c", holders, waiters: [] }) : problem("indeterminate", 504),
  );
  await using it = client(played);
  assert.equal(await it.locked("a/b c"), true);
  holders = [];
  assert.equal(await it.locked("a/b c"), false);
  await failure(it.locked("other"), UnavailableError);
  assert.equal((await failure(it.locked("other", { timeout: 100 }), TimedOutError)).reason, "timeout");
});
