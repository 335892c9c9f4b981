// node-redis-warlock, with the client that it was made for.
import assert from "node:assert/strict";
import { promisify } from "node:util";
import Warlock from "node-redis-warlock";
import redis from "redis";
import { host, onRingfence, play, port, token, until } from "./steps.mjs";

const client = redis.createClient(port, host);
const call = (...words) => promisify(client.send_command).call(client, words[0], words.slice(1));
const warlock = Warlock(client);
/** Tries once: what releases it, or false, and its id. */
const lock = (key, ttl) =>
  new Promise((resolve, reject) =>
    warlock.lock(key, ttl, (error, unlock, id) => (error ? reject(error) : resolve({ unlock, id }))),
  );

async function acquiresExtendsAndReleases(key) {
  const { unlock, id } = await lock(key, 10_000);
  assert.equal(typeof unlock, "function");
  assert.equal((await lock(key, 10_000)).unlock, false);
  assert.equal(await warlock.touch(key, id, 20_000), "OK");
  assert((await call("PTTL", warlock.makeKey(key))) > 17_000);
  assert.equal(await promisify(unlock)(), 1);
  assert.equal(await call("GET", warlock.makeKey(key)), null);
}

async function aLateReleaseSparesTheNewerHolder(key) {
  const late = await lock(key, 300);
  const newer = await promisify(warlock.optimistic)(key, 10_000, 400, 50);
  assert.equal(await promisify(late.unlock)(), 0);
  assert.equal(await warlock.touch(key, late.id, 10_000), 0);
  assert.notEqual(await call("GET", warlock.makeKey(key)), null);
  assert.equal(await promisify(newer)(), 1);
}

async function aGrantHasALargerToken(key) {
  const tokens = [];
  for (let turn = 0; turn < 2; turn += 1) {
    const { unlock, id } = await lock(key, 10_000);
    tokens.push(await token(call, warlock.makeKey(key), id));
    await promisify(unlock)();
  }
  assert(tokens[0] < tokens[1], tokens.join());
}

await until(() => client.ready, "the connection");
await play("node-redis-warlock", [
  acquiresExtendsAndReleases,
  aLateReleaseSparesTheNewerHolder,
  ...(onRingfence ? [aGrantHasALargerToken] : []),
]);
