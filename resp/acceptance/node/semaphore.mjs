// redis-semaphore: its Mutex, and its RedlockMutex with one server. Its semaphores are sorted sets.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { LostLockError, Mutex, RedlockMutex, Semaphore, TimeoutError } from "redis-semaphore";
import { host, onRingfence, play, port, revoke, token, until } from "./steps.mjs";

const client = new Redis(port, host);
const call = (...words) => client.call(...words);
const options = { lockTimeout: 10_000, refreshInterval: 0 };

async function acquiresAndReleases(key) {
  const mutex = new Mutex(client, key, options);
  await mutex.acquire();
  assert.equal(await client.get(`mutex:${key}`), mutex.identifier);
  assert.equal(await new Mutex(client, key, { ...options, acquireAttemptsLimit: 1 }).tryAcquire(), false);
  await assert.rejects(new Mutex(client, key, { ...options, acquireTimeout: 100 }).acquire(), TimeoutError);
  await mutex.release();
  assert.equal(await client.get(`mutex:${key}`), null);
}

async function locksAgainWithOneIdentifier(key) {
  const mutex = new Mutex(client, key, { ...options, identifier: "the same" });
  for (let turn = 0; turn < 3; turn += 1) {
    await mutex.acquire();
    await mutex.release();
  }
  await mutex.acquire();
  const other = new Mutex(client, key, { ...options, identifier: "the same", acquiredExternally: true });
  assert.equal(await other.tryAcquire(), true);
  await other.release();
  assert.equal(await client.get(`mutex:${key}`), null);
}

async function itRefreshesByItself(key) {
  const mutex = new Mutex(client, key, { lockTimeout: 1_000, refreshInterval: 300 });
  await mutex.acquire();
  let [before, times] = [await client.pttl(`mutex:${key}`), 0];
  await until(async () => {
    const now = await client.pttl(`mutex:${key}`);
    assert(now > 0, "it ended");
    times += now > before ? 1 : 0;
    before = now;
    return times >= 5;
  }, "five refreshes");
  assert(mutex.isAcquired);
  await mutex.release();
}

async function aRevokedOneIsLost(key) {
  let lost;
  const onLockLost = (error) => (lost = error);
  const mutex = new Mutex(client, key, { lockTimeout: 10_000, refreshInterval: 100, onLockLost });
  await mutex.acquire();
  await revoke(call, `mutex:${key}`, mutex.identifier);
  await until(() => lost, "the loss");
  assert(lost instanceof LostLockError && !mutex.isAcquired);
}

async function aLateReleaseSparesTheNewerHolder(key) {
  const late = new Mutex(client, key, { lockTimeout: 300, refreshInterval: 0 });
  const newer = new Mutex(client, key, { ...options, acquireTimeout: 20_000 });
  await late.acquire();
  await newer.acquire();
  await late.release();
  assert.equal(await client.get(`mutex:${key}`), newer.identifier);
  await newer.release();
}

async function redlockMutexAcquiresAndReleases(key) {
  const [first, second] = [1, 2].map(() => new RedlockMutex([client], key, { ...options, acquireTimeout: 200 }));
  await first.acquire();
  await assert.rejects(second.acquire(), TimeoutError);
  await first.release();
  await second.acquire();
  await second.release();
}

async function aSemaphoreIsRefused(key) {
  await assert.rejects(new Semaphore(client, key, 2, options).acquire(), /ringfence/);
}

async function aGrantHasALargerToken(key) {
  const [mutex, tokens] = [new Mutex(client, key, options), []];
  for (let turn = 0; turn < 2; turn += 1) {
    await mutex.acquire();
    tokens.push(await token(call, `mutex:${key}`, mutex.identifier));
    await mutex.release();
  }
  assert(tokens[0] < tokens[1], tokens.join());
}

await play("redis-semaphore", [
  acquiresAndReleases,
  locksAgainWithOneIdentifier,
  itRefreshesByItself,
  aRevokedOneIsLost,
  aLateReleaseSparesTheNewerHolder,
  redlockMutexAcquiresAndReleases,
  ...(onRingfence ? [aSemaphoreIsRefused, aGrantHasALargerToken] : []),
]);
