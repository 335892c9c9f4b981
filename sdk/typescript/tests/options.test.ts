import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Client, InvalidError } from "../src/index.js";
import { Played } from "./support/played.js";
import { failure } from "./support/until.js";

test("what is wrong with an acquire is named, and nothing is sent", async () => {
  await using played = await Played.start(() => undefined);
  await using client = new Client({ urls: [played.url] });
  // biome-ignore lint/suspicious/noExplicitAny: as JavaScript would call it.
  const cases: [any, any, string][] = [
    ["", {}, "keys"],
    [[], {}, "keys"],
    [undefined, {}, "keys"],
    [Array.from({ length: 65 }, (_, n) => `k${n}`), {}, "keys"],
    [["a", "b//c"], {}, "keys[1]"],
    [["a", "a"], {}, "keys[1]"],
    [["a", { key: ".." }], {}, "keys[1].key"],
    [{ key: "a", limit: 0 }, {}, "keys.limit"],
    [{ key: "a", lmit: 2 }, {}, "lmit"],
    ["x".repeat(513), {}, "keys"],
    ["a\u0000", {}, "keys"],
    ["\ud800", {}, "keys"],
    ["a", { ttl: 99 }, "ttl"],
    ["a", { ttl: "15s" }, "ttl"],
    ["a", { ttl: Number.NaN }, "ttl"],
    ["a", { ttlMs: 1_000 }, "ttlMs"],
    ["a", { wait: -1 }, "wait"],
    ["a", { shared: "yes" }, "shared"],
    ["a", { shared: false, limit: 2 }, "limit"],
    ["a", { holder: "x".repeat(257) }, "holder"],
    ["a", { metadata: { a: 1 } }, "metadata.a"],
    ["a", { metadata: { a: "x".repeat(4_096) } }, "metadata"],
    ["a", { maxHold: "1" }, "maxHold"],
    ["a", { maxHold: 0 }, "maxHold"],
    ["a", { timeout: Number.NaN }, "timeout"],
    ["a", { holdAtLeast: 9e9 }, "holdAtLeast"],
    ["a", { renew: 1 }, "renew"],
    ["a", { signal: {} }, "signal"],
    ["a", null, "options"],
  ];
  for (const [keys, options, field] of cases) {
    const error = await failure(client.acquire(keys, options), InvalidError);
    assert.equal(error.field, field, error.message);
  }
  assert.equal((await failure(client.adopt("7"), InvalidError)).field, "leaseId");
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  assert.equal((await failure(client.using("a", {} as any), InvalidError)).field, "work");
  assert.equal(played.connections, 0);
});

test("what is wrong with a client's options is named", () => {
  const file = join(mkdtempSync(join(tmpdir(), "ringfence-ts-")), "no.pem");
  writeFileSync(file, "no certificate");
  const plain = ["http://a:1"];
  const https = ["https://a:1"];
  // biome-ignore lint/suspicious/noExplicitAny: as JavaScript would call it.
  const cases: [any, string][] = [
    [{ urls: [] }, "urls"],
    [{ urls: "http://a" }, "urls"],
    [{ urls: ["a:1"] }, "urls[0]"],
    [{ urls: ["http://a:1", "ftp://b"] }, "urls[1]"],
    [{ urls: ["http://a:1/path"] }, "urls[0]"],
    [{ urls: ["http://me:secret@a:1"] }, "urls[0]"],
    [{ urls: ["http://a:1", "https://b:1"] }, "urls[0]"],
    [{ urls: plain, credential: "secret" }, "credential"],
    [{ urls: https, credential: "two words" }, "credential"],
    [{ urls: plain, ca: file }, "ca"],
    [{ urls: https, cert: file }, "key"],
    [{ urls: https, key: file }, "cert"],
    [{ urls: https, ca: `${file}.missing` }, "ca"],
    [{ urls: https, cert: file, key: file }, "cert"],
    [{ urls: https, ca: file }, "ca"],
    [{ urls: plain, onWarning: "print" }, "onWarning"],
    [{ urls: plain, url: "" }, "url"],
  ];
  for (const [options, field] of cases) {
    assert.throws(
      () => new Client(options),
      (error) => error instanceof InvalidError && error.field === field && !error.message.includes("secret"),
      field,
    );
  }
});
