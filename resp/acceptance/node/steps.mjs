// What the scenarios of Node.js libraries share. A step is a function that is called with a new key, and fails by an exception.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";

export const host = process.env.LOCKS_HOST;
export const port = Number(process.env.LOCKS_PORT);
// Whether the server is a node of Ringfence, and not a Redis.
export const onRingfence = process.env.LOCKS_HTTP !== "";

/** Plays the steps, tells the runner how each of them went, and ends the process. */
export async function play(packageName, steps) {
  const file = new URL(`node_modules/${packageName}/package.json`, import.meta.url);
  console.log("version", JSON.parse(readFileSync(file, "utf8")).version);
  for (const step of steps) {
    try {
      await step(`${step.name}-${randomUUID()}`);
      console.log("ok", step.name);
    } catch (error) {
      console.log(`failed ${step.name}: ${why(error)}`.replaceAll("\n", " "));
    }
  }
  process.exit(0);
}

/** What an error says, and the errors within it. */
function why(error) {
  const inner = [...(error.attempts ?? []), ...(error.errors ?? []), ...(error.cause ? [error.cause] : [])];
  const first = inner.length > 0 && inner[0] instanceof Error ? ` (${why(inner[0])})` : "";
  return `${error.name}: ${error.message}${first}`;
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Looks until there is something. */
export async function until(look, what, ms = 20_000) {
  for (const end = Date.now() + ms; ; ) {
    const found = await look();
    if (found) return found;
    assert(Date.now() < end, `not within ${ms} ms: ${what}`);
    await sleep(20);
  }
}

/** The token of the lock with this value. `call` sends any command. */
export async function token(call, key, value) {
  const found = Number(await call("RINGFENCE.TOKEN", key, value));
  assert(found > 0, `no token: ${found}`);
  return found;
}

/** Ends the lease as an operator does; on a Redis, deletes the key. */
export async function revoke(call, key, value) {
  if (!onRingfence) return assert.equal(await call("DEL", key), 1);
  const body = JSON.stringify({ key, token: await token(call, key, value) });
  const response = await fetch(`${process.env.LOCKS_HTTP}/v1/revoke`, { method: "POST", body });
  assert.equal(response.status, 204);
}
