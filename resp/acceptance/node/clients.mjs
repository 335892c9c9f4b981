// ioredis and node-redis by themselves: what their connections send, and the lock that documents show.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { host, onRingfence, play, port, token } from "./steps.mjs";

const name = process.argv[2];
const unlock = 'if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end';

/** The client, as a function that sends any command, with the options of a connection. */
async function connect({ protocol = 3, ...options } = {}) {
  if (name === "ioredis") {
    const client = new Redis({ port, host, protocol, ...options });
    return { call: (...words) => client.call(...words), close: () => client.quit(), client };
  }
  const client = await createClient({ socket: { host, port }, RESP: protocol, ...options }).connect();
  return { call: (...words) => client.sendCommand(words), close: () => client.close(), client };
}

const { call, client } = await connect();

async function locksAndUnlocks(key) {
  const value = randomUUID();
  assert.equal(await call("SET", key, value, "NX", "PX", "10000"), "OK");
  assert.equal(await call("SET", key, randomUUID(), "NX", "PX", "10000"), null);
  assert.equal(await call("GET", key), value);
  assert.equal(await call("EVAL", unlock, "1", key, "of another"), 0);
  assert.equal(await call("EVAL", unlock, "1", key, value), 1);
  assert.equal(await call("EXISTS", key), 0);
}

async function connectsWithEachProtocol(key) {
  for (const protocol of [2, 3]) {
    const one = await connect({ protocol });
    assert.equal(await one.call("PING"), "PONG");
    assert.equal(await one.call("SET", key, `by ${protocol}`, "NX", "PX", "10000"), "OK");
    assert.equal(await one.call("GET", key), `by ${protocol}`);
    assert.equal(await one.call("DEL", key), 1);
    await one.close();
  }
}

async function answersAPipelineInOrder(key) {
  const values = Array.from({ length: 100 }, (_, number) => `${number}`);
  const answers = values.flatMap((value) => [
    call("SET", `${key}-${value}`, value, "NX", "PX", "10000"),
    call("GET", `${key}-${value}`),
    call("DEL", `${key}-${value}`),
  ]);
  assert.deepEqual(await Promise.all(answers), values.flatMap((value) => ["OK", value, 1]));
}

async function deletesInATransaction(key) {
  await call("SET", key, "mine", "NX", "PX", "10000");
  const answers = await client.multi().get(key).del(key).exec();
  // ioredis gives an error beside each answer.
  assert.deepEqual(name === "ioredis" ? answers.map(([, answer]) => answer) : answers, ["mine", 1]);
}

async function anotherDatabaseHasOtherKeys(key) {
  const other = await connect(name === "ioredis" ? { db: 1 } : { database: 1 });
  await call("SET", key, "in 0", "NX", "PX", "10000");
  assert.equal(await other.call("GET", key), null);
  assert.equal(await other.call("SET", key, "in 1", "NX", "PX", "10000"), "OK");
  assert.equal(await call("GET", key), "in 0");
  await Promise.all([call("DEL", key), other.call("DEL", key)]);
  await other.close();
}

async function withoutAnExpiryItIsRefused(key) {
  await assert.rejects(call("SET", key, "value", "NX"), /ringfence/);
  await assert.rejects(call("SETNX", key, "value"), /ringfence/);
  await assert.rejects(call("SUBSCRIBE", key), /ringfence/);
  assert.equal(await call("GET", key), null);
}

async function aGrantHasALargerToken(key) {
  const tokens = [];
  for (const value of ["one", "two"]) {
    await call("SET", key, value, "NX", "PX", "10000");
    tokens.push(await token(call, key, value));
    await call("DEL", key);
  }
  assert(tokens[0] < tokens[1], tokens.join());
}

await play(name, [
  connectsWithEachProtocol,
  locksAndUnlocks,
  answersAPipelineInOrder,
  deletesInATransaction,
  anotherDatabaseHasOtherKeys,
  ...(onRingfence ? [withoutAnExpiryItIsRefused, aGrantHasALargerToken] : []),
]);
