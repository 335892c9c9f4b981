// redlock 4, with one server, and with each of the clients that it knew.
import assert from "node:assert/strict";
import Redis from "ioredis";
import redis from "redis";
import Redlock from "redlock";
import { host, onRingfence, play, port, sleep, token } from "./steps.mjs";

const client = new Redis(port, host);
const options = { retryCount: 0 };
const locks = new Redlock([client], options);
const patient = new Redlock([client], { retryCount: -1, retryDelay: 50, retryJitter: 0 });
for (const one of [locks, patient]) one.on("clientError", () => {});
const of = (key) => [1, 2, 3].map((number) => `${key}-${number}`);

async function locksThreeResources(key) {
  const lock = await locks.lock(of(key), 10_000);
  for (const resource of of(key)) {
    assert.equal(await client.get(resource), lock.value);
    await assert.rejects(locks.lock(resource, 10_000), Redlock.LockError);
  }
  await lock.extend(20_000);
  for (const resource of of(key)) assert((await client.pttl(resource)) > 17_000);
  await lock.unlock();
  assert.equal(await client.exists(...of(key)), 0);
}

async function oneTakenResourceRefusesAll(key) {
  const [first, second, third] = of(key);
  const lock = await locks.lock(second, 10_000);
  await assert.rejects(locks.lock([first, second, third], 10_000), Redlock.LockError);
  assert.equal(await client.exists(first, third), 0);
  await lock.unlock();
}

async function aWaiterGetsItNext(key) {
  const lock = await locks.lock(key, 10_000);
  const next = patient.lock(key, 10_000);
  await sleep(100);
  await lock.unlock();
  await (await next).unlock();
}

async function aLateReleaseSparesTheNewerHolder(key) {
  const late = await locks.lock(key, 300);
  const newer = await patient.lock(key, 10_000);
  await assert.rejects(late.extend(10_000));
  await assert.rejects(late.unlock());
  assert.equal(await client.get(key), newer.value);
  await newer.unlock();
}

async function worksWithNodeRedis3(key) {
  const old = redis.createClient(port, host);
  const lock = await new Redlock([old], options).lock(of(key), 10_000);
  await lock.extend(10_000);
  await lock.unlock();
  old.quit();
}

async function aGrantHasALargerToken(key) {
  const tokens = [];
  for (let turn = 0; turn < 2; turn += 1) {
    const lock = await locks.lock(key, 10_000);
    tokens.push(await token((...words) => client.call(...words), key, lock.value));
    await lock.unlock();
  }
  assert(tokens[0] < tokens[1], tokens.join());
}

await play("redlock", [
  locksThreeResources,
  oneTakenResourceRefusesAll,
  aWaiterGetsItNext,
  aLateReleaseSparesTheNewerHolder,
  worksWithNodeRedis3,
  ...(onRingfence ? [aGrantHasALargerToken] : []),
]);
