// redlock 5, or @sesamecare-oss/redlock, which went on from it, with one server.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { host, onRingfence, play, port, revoke, sleep, token, until } from "./steps.mjs";

const name = process.argv[2];
const { default: original, Redlock = original, ExecutionError } = await import(name);
const client = new Redis(port, host);
const call = (...words) => client.call(...words);
const locks = new Redlock([client], { retryCount: 0, automaticExtensionThreshold: 4_500 });
const patient = new Redlock([client], { retryCount: -1, retryDelay: 50, retryJitter: 0 });
// Without a listener, its errors would be unhandled and end the process.
for (const one of [locks, patient]) one.on("error", () => {});
const of = (key) => [1, 2, 3].map((number) => `${key}-${number}`);

async function locksThreeResources(key) {
  const lock = await locks.acquire(of(key), 10_000);
  for (const resource of of(key)) {
    assert.equal(await client.get(resource), lock.value);
    await assert.rejects(locks.acquire([resource], 10_000), ExecutionError);
  }
  const longer = await lock.extend(20_000);
  for (const resource of of(key)) assert((await client.pttl(resource)) > 17_000);
  await longer.release();
  assert.equal(await client.exists(...of(key)), 0);
}

async function oneTakenResourceRefusesAll(key) {
  const [first, second, third] = of(key);
  const lock = await locks.acquire([second], 10_000);
  await assert.rejects(locks.acquire([first, second, third], 10_000), ExecutionError);
  assert.equal(await client.exists(first, third), 0);
  await lock.release();
  await (await locks.acquire([first, second, third], 10_000)).release();
}

async function aWaiterGetsItNext(key) {
  const lock = await locks.acquire([key], 10_000);
  const next = patient.acquire([key], 10_000);
  await sleep(100);
  await lock.release();
  await (await next).release();
}

async function aLateReleaseSparesTheNewerHolder(key) {
  const late = await locks.acquire([key], 1_000);
  const newer = await patient.acquire([key], 10_000);
  await assert.rejects(late.release());
  assert.equal(await client.get(key), newer.value);
  await assert.rejects(late.extend(10_000));
  await newer.release();
}

async function usingExtends(key) {
  let most = 0;
  const begun = Date.now();
  await locks.using(of(key), 5_000, async (signal) => {
    let before = await client.pttl(key + "-1");
    await until(async () => {
      assert(!signal.aborted, "it was lost");
      const now = await client.pttl(key + "-1");
      assert(now > 0, "it ended");
      if (now > before) most += 1;
      before = now;
      return most >= 5;
    }, "five extensions");
    assert(Date.now() - begun > 2_000);
  });
  assert.equal(await client.exists(...of(key)), 0);
}

async function usingNoticesTheLoss(key) {
  await locks
    .using([key], 5_000, async (signal) => {
      await revoke(call, key, await client.get(key));
      await until(() => signal.aborted, "the signal");
    })
    // The release of what is lost.
    .catch((error) => assert(error instanceof ExecutionError, error));
}

async function aGrantHasALargerToken(key) {
  const tokens = [];
  for (let turn = 0; turn < 2; turn += 1) {
    const lock = await locks.acquire(of(key), 10_000);
    tokens.push(...(await Promise.all(of(key).map((resource) => token(call, resource, lock.value)))));
    await lock.release();
  }
  assert(Math.max(...tokens.slice(0, 3)) < Math.min(...tokens.slice(3)), tokens.join());
}

async function aScriptLocksInTheDatabaseOfItsConnection(key) {
  const third = new Redis(port, host, { db: 3 });
  const locksThere = (db) => new Redlock([third], { retryCount: 0, db });
  const lock = await locksThere(3).acquire([key], 10_000);
  assert.equal(await third.get(key), lock.value);
  assert.equal(await client.get(key), null);
  await lock.release();
  // Redis would lock in the other database.
  if (onRingfence) await assert.rejects(locksThere(0).acquire([key], 10_000), ExecutionError);
  await third.quit();
}

await play(name, [
  locksThreeResources,
  oneTakenResourceRefusesAll,
  aWaiterGetsItNext,
  aLateReleaseSparesTheNewerHolder,
  usingExtends,
  usingNoticesTheLoss,
  ...(name.startsWith("@sesamecare") ? [aScriptLocksInTheDatabaseOfItsConnection] : []),
  ...(onRingfence ? [aGrantHasALargerToken] : []),
]);
