/**
 * The load of one process of Node.js: as load.py.
 *
 *     load.mjs KIND LEASES SECONDS URL…      KIND is ringfence, redis or etcd
 */
import { Etcd3 } from "etcd3";
import { Redis } from "ioredis";
import { createLock, IoredisAdapter } from "redlock-universal";
import { Client } from "../typescript/dist/src/index.js";

const TTL_S = 10;
/** What is first done once, as connecting, is not counted. */
const WARMUP_MS = 500;

const LIBRARIES = {
  ringfence(urls) {
    const client = new Client({ urls });
    return async (key) => await (await client.acquire(key, { ttl: TTL_S * 1_000 })).release();
  },
  redis([url]) {
    const adapter = new IoredisAdapter(new Redis(url));
    return async (key) => {
      const lock = createLock({ adapter, key, ttl: TTL_S * 1_000 });
      await lock.release(await lock.acquire());
    };
  },
  etcd([url]) {
    const client = new Etcd3({ hosts: url });
    return async (key) => {
      const lock = client.lock(key).ttl(TTL_S);
      await lock.acquire();
      await lock.release();
    };
  },
};

const [kind, leases, seconds, ...urls] = process.argv.slice(2);
const cycle = LIBRARIES[kind](urls);
const begins = performance.now() + WARMUP_MS;
const ends = begins + Number(seconds) * 1_000;

async function work(number) {
  let count = 0;
  while (performance.now() < ends) {
    await cycle(`bench/${number}`);
    count += Number(performance.now() >= begins && performance.now() < ends);
  }
  return count;
}

const counts = await Promise.all(Array.from({ length: Number(leases) }, (_, number) => work(number)));
const perS = counts.reduce((sum, count) => sum + count, 0) / Number(seconds);
process.stdout.write(JSON.stringify({ per_s: perS }), () => process.exit(0));
