// redlock-universal, with one server and each of its clients.
import assert from "node:assert/strict";
import { Redis } from "ioredis";
import { createClient } from "redis";
import {
  IoredisAdapter,
  LockAcquisitionError,
  LockManager,
  NodeRedisAdapter,
  createLock,
  createRedlock,
} from "redlock-universal";
import { host, onRingfence, play, port, revoke, token, until } from "./steps.mjs";

const client = new Redis(port, host);
const call = (...words) => client.call(...words);
const nodeRedis = await createClient({ socket: { host, port } }).connect();
const adapters = { ioredis: new IoredisAdapter(client), nodeRedis: new NodeRedisAdapter(nodeRedis) };
const once = { ttl: 10_000, retryAttempts: 0 };

async function acquiresExtendsAndReleases(key) {
  for (const [name, adapter] of Object.entries(adapters)) {
    const [lock, other] = [1, 2].map(() => createLock({ adapter, key: `${key}-${name}`, ...once }));
    const handle = await lock.acquire();
    assert.equal(await client.get(handle.key), handle.value);
    await assert.rejects(other.acquire(), LockAcquisitionError);
    assert.equal(await lock.extend(handle, 20_000), true);
    assert((await client.pttl(handle.key)) > 17_000);
    assert.equal(await lock.release(handle), true);
    await other.release(await other.acquire());
  }
}

async function redlockOfOneServer(key) {
  const lock = createRedlock({ adapters: [adapters.ioredis], key, quorum: 1, ...once });
  const handle = await lock.acquire();
  await assert.rejects(createRedlock({ adapters: [adapters.ioredis], key, quorum: 1, ...once }).acquire());
  assert.equal(await lock.extend(handle, 10_000), true);
  assert.equal(await lock.release(handle), true);
}

async function locksSeveralOrNone(key) {
  const manager = new LockManager({ nodes: [adapters.ioredis], defaultTTL: 10_000, defaultRetryAttempts: 0 });
  const keys = [1, 2, 3].map((number) => `${key}-${number}`);
  const one = await manager.acquireLock(keys[1], once);
  await assert.rejects(manager.acquireBatch(keys, once));
  assert.equal(await client.exists(keys[0], keys[2]), 0);
  await manager.releaseLock(one);
  const all = await manager.acquireBatch(keys, once);
  assert.equal(await client.exists(...keys), 3);
  await manager.releaseBatch(all);
  assert.equal(await client.exists(...keys), 0);
}

async function usingExtends(key) {
  const lock = createLock({ adapter: adapters.ioredis, key, ttl: 1_000, retryAttempts: 0 });
  await lock.using(async (signal) => {
    let [before, times] = [await client.pttl(key), 0];
    await until(async () => {
      assert(!signal.aborted, "it was lost");
      const now = await client.pttl(key);
      times += now > before ? 1 : 0;
      before = now;
      return times >= 5;
    }, "five extensions");
  });
  assert.equal(await client.get(key), null);
}

async function usingNoticesTheLoss(key) {
  const lock = createLock({ adapter: adapters.ioredis, key, ttl: 1_000, retryAttempts: 0 });
  await lock
    .using(async (signal) => {
      await revoke(call, key, await client.get(key));
      await until(() => signal.aborted, "the signal");
    })
    .catch(() => {});
}

async function aLateReleaseSparesTheNewerHolder(key) {
  const late = createLock({ adapter: adapters.ioredis, key, ttl: 300, retryAttempts: 0 });
  const newer = createLock({ adapter: adapters.ioredis, key, ttl: 10_000, retryAttempts: 400, retryDelay: 50 });
  const [old, current] = [await late.acquire(), await newer.acquire()];
  assert.equal(await late.release(old), false);
  assert.equal(await late.extend(old, 10_000), false);
  assert.equal(await client.get(key), current.value);
  await newer.release(current);
}

async function aGrantHasALargerToken(key) {
  const [lock, tokens] = [createLock({ adapter: adapters.nodeRedis, key, ...once }), []];
  for (let turn = 0; turn < 2; turn += 1) {
    const handle = await lock.acquire();
    tokens.push(await token(call, key, handle.value));
    await lock.release(handle);
  }
  assert(tokens[0] < tokens[1], tokens.join());
}

await play("redlock-universal", [
  acquiresExtendsAndReleases,
  redlockOfOneServer,
  locksSeveralOrNone,
  usingExtends,
  usingNoticesTheLoss,
  aLateReleaseSparesTheNewerHolder,
  ...(onRingfence ? [aGrantHasALargerToken] : []),
]);
