// Loops that acquire and release a lock each with redlock 5, again and again. Prints how often they did.
import { Redis } from "ioredis";
import Redlock from "redlock";

const { LOCKS_HOST, LOCKS_PORT, CYCLES_CLIENTS, CYCLES_SECONDS } = process.env;
const redlock = new Redlock([new Redis(Number(LOCKS_PORT), LOCKS_HOST)], { retryCount: 0 });

async function locks(number) {
  const key = `cycles/${number}`;
  await (await redlock.acquire([key], 10_000)).release();
  const end = performance.now() + CYCLES_SECONDS * 1_000;
  let done = 0;
  for (; performance.now() < end; done += 1) await (await redlock.acquire([key], 10_000)).release();
  return done;
}

const numbers = Array.from({ length: Number(CYCLES_CLIENTS) }, (_, number) => number);
const counts = await Promise.all(numbers.map(locks));
console.log(counts.reduce((sum, count) => sum + count, 0));
process.exit(0);
