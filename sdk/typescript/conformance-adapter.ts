/** Speaks the protocol of the conformance suite: one JSON object per line, requests on stdin, answers and events on stdout. */
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { systemClock } from "./src/clock.js";
import {
  Client,
  type ClientOptions,
  HeldError,
  type Keys,
  type Lease,
  type LeaseView,
  type LockOptions,
  LostError,
  RejectedError,
  RingfenceError,
  StaleError,
  TimedOutError,
  UnknownError,
} from "./src/index.js";

/** A request. Each operation has fields of its own. */
interface Call {
  readonly id: number;
  readonly op: string;
  readonly [field: string]: unknown;
}

/**
 * A process of Node.js cannot fork, and ends at once if told so, or else not before its calls have ended. Whatever blocks, blocks the loop that renews.
 * Nothing interrupts running code.
 */
const ABILITIES = [
  "cancel",
  "using",
  "shared",
  "clock",
  "block",
  "tls",
  "credential",
  "adopt",
  "headers",
  "hold_at_least",
  "max_hold",
  "deadline",
  "leave",
  "drop",
  "leaked",
  "on_lost",
  "lead",
  "close",
  "resources",
];

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

const clients = new Map<string, Client>();
const leases = new Map<string, Lease>();
/** The acquires that can be cancelled, by the id of their request. */
const pending = new Map<number, AbortController>();
/** What ends the body of each block that was entered, and how the block ends. */
const blocks = new Map<string, { readonly end: () => void; readonly ended: Promise<void> }>();
/** The names of leases, by their tokens. */
const names = new Map<number, string>();
/** Those whose callback fails. */
const failing = new Set<string>();
const jumpedMs = { boot: 0, raw: 0 };

const played = {
  monotonic: () => systemClock.monotonic() + jumpedMs.raw,
  uptime: () => systemClock.uptime() + jumpedMs.boot,
};

/** Tells of losses without a reference to the handle. */
const hooks = {
  lost: ({ token }: LeaseView, reason: string) => lost(token, reason),
  released: ({ token }: LeaseView) => lost(token, "released"),
};

/** The error of the body of `using`. */
class BodyError extends Error {}

function named<T>(map: Map<string, T>, name: unknown): T {
  const value = map.get(String(name));
  if (value === undefined) {
    throw new TypeError(`there is no ${String(name)}`);
  }
  return value;
}

function lockOptions(call: Call, signal: AbortSignal): LockOptions {
  const given = {
    ttl: call.ttl_ms,
    wait: call.op === "try" ? 0 : call.wait_ms,
    holdAtLeast: call.hold_at_least_ms,
    maxHold: call.max_hold_ms,
    metadata: call.metadata,
    holder: call.holder,
    timeout: call.deadline_ms,
  };
  const set = Object.entries(given).filter(([, value]) => value !== undefined && value !== null);
  return { ...Object.fromEntries(set), signal };
}

function open(call: Call): void {
  const { urls, credential, ca, cert, key, clock } = call;
  const set = Object.entries({ urls, credential, ca, cert, key }).filter(
    ([, value]) => value !== undefined && value !== null,
  );
  const options = Object.fromEntries(set) as unknown as ClientOptions;
  const own = { ...options, hooks, onWarning: warned };
  clients.set(String(call.client), new Client(clock === "played" ? { ...own, clock: played } : own));
}

function warned(code: string, message: string): void {
  if (code === "RINGFENCE_DROPPED") {
    write({ event: "leaked", message });
  } else {
    process.stderr.write(`${code} ${message}\n`);
  }
}

function lost(token: number, reason: string): void {
  const lease = names.get(token);
  if (lease === undefined) {
    return;
  }
  names.delete(token);
  write({ event: "lost", lease, reason });
  if (failing.has(lease)) {
    throw new BodyError("the callback failed");
  }
}

function keep(call: Call, lease: Lease): object {
  const name = String(call.lease);
  leases.set(name, lease);
  names.set(lease.token, name);
  if (call.on_lost === "raise") {
    failing.add(name);
  }
  const { reason } = lease;
  if (reason !== undefined) {
    // Before it had its name.
    lost(lease.token, reason);
  }
  const fences = Object.fromEntries(lease.keys.map((key) => [key, lease.fence(key)]));
  return { lease_id: lease.leaseId, token: lease.token, fences, state: lease.state };
}

async function using(call: Call, signal: AbortSignal): Promise<object> {
  await named(clients, call.client).using(call.keys as Keys, lockOptions(call, signal), async (lease, lost) => {
    keep(call, lease);
    if (call.body === "until_lost" || call.body === "swallow") {
      await aborted(lost);
    } else if (typeof call.ms === "number") {
      await new Promise((resolve) => setTimeout(resolve, Number(call.ms)));
    }
    if (call.body === "raise") {
      throw new BodyError("the body failed");
    }
  });
  return {};
}

/** A block whose body is ended by another. */
async function enter(call: Call): Promise<object> {
  return await new Promise((resolve, reject) => {
    const work = async (lease: Lease) => {
      resolve(keep(call, lease));
      await new Promise<void>((end) => blocks.set(String(call.lease), { end, ended }));
    };
    const { signal } = new AbortController();
    const ended = named(clients, call.client).using(call.keys as Keys, lockOptions(call, signal), work);
    ended.catch(reject);
  });
}

async function leave(call: Call): Promise<object> {
  const { end, ended } = named(blocks, call.lease);
  setImmediate(end);
  await ended;
  return {};
}

async function lead(call: Call, signal: AbortSignal): Promise<object> {
  let terms = 0;
  let reported = 0;
  const onError = () => {
    reported += 1;
  };
  const work = async (lease: Lease, lost: AbortSignal) => {
    terms += 1;
    write({ event: "leads", lease: call.lease, token: lease.token });
    if (terms > 1 || call.body === "return") {
      return;
    }
    if (call.body === "raise_stale") {
      throw new StaleError("the guard refused the token");
    }
    if (call.body === "raise_after_loss") {
      await aborted(lost);
    }
    throw new BodyError("the body failed");
  };
  await named(clients, call.client).lead(String(call.key), work, { ttl: Number(call.ttl_ms), signal, onError });
  return { terms, reported };
}

async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) {
    await once(signal, "abort");
  }
}

/** Forgets a handle. The machine that collects it needs another turn to say so. */
async function drop(name: string): Promise<object> {
  leases.delete(name);
  for (let turns = 0; turns < 3; turns += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    collect();
  }
  return {};
}

function advance(by: unknown): void {
  const { boot = 0, raw = 0 } = typeof by === "number" ? { boot: by, raw: by } : (by as Partial<typeof jumpedMs>);
  jumpedMs.boot += boot;
  jumpedMs.raw += raw;
}

function callOptions({ deadline_ms }: Call): { timeout?: number } {
  return typeof deadline_ms === "number" ? { timeout: deadline_ms } : {};
}

function block(ms: unknown): void {
  const end = performance.now() + Number(ms);
  while (performance.now() < end) {
    // The event loop stands still.
  }
}

async function run(call: Call, signal: AbortSignal): Promise<object> {
  switch (call.op) {
    case "hello":
      return { sdk: "typescript", abilities: ABILITIES };
    case "open":
      open(call);
      return {};
    case "acquire":
    case "try":
      return keep(call, await named(clients, call.client).acquire(call.keys as Keys, lockOptions(call, signal)));
    case "adopt":
      return keep(call, await named(clients, call.client).adopt(String(call.lease_id), { signal }));
    case "using":
      return await using(call, signal);
    case "cancel":
      pending.get(Number(call.target))?.abort();
      return {};
    case "renew":
      await named(leases, call.lease).renew((call.ttl_ms ?? undefined) as number | undefined, callOptions(call));
      return {};
    case "release":
      await named(leases, call.lease).release(callOptions(call));
      return {};
    case "state": {
      const lease = named(leases, call.lease);
      return { state: lease.state, remaining_ms: lease.remaining, reason: lease.reason ?? null };
    }
    case "headers":
      return { headers: named(leases, call.lease).headers(call.key as string | undefined) };
    case "fence":
      return { fence: named(leases, call.lease).fence(call.key as string | undefined) };
    case "block":
      block(call.ms);
      return {};
    case "clock":
      advance(call.advance_ms);
      return {};
    case "many":
      for (const one of call.requests as Call[]) {
        void answer(one);
      }
      return {};
    case "enter":
      return await enter(call);
    case "leave":
      return await leave(call);
    case "drop":
      return await drop(String(call.lease));
    case "lead":
      return await lead(call, signal);
    case "close": {
      const within = typeof call.within_ms === "number" ? { within: call.within_ms } : {};
      return { left: (await named(clients, call.client).close(within)).left.length };
    }
    case "resources": {
      const timers = process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
      return { descriptors: readdirSync("/proc/self/fd").length, timers };
    }
    default:
      throw new TypeError(`there is no operation ${call.op}`);
  }
}

function problem(error: unknown): object {
  const is = error as Partial<RingfenceError>;
  const cancelled = (error as Error | undefined)?.name === "AbortError";
  const own = error instanceof BodyError ? "Body" : cancelled ? "Cancelled" : "Internal";
  return {
    kind: error instanceof RingfenceError ? is.kind : own,
    reason: error instanceof LostError || error instanceof TimedOutError ? error.reason : null,
    lease_id: error instanceof UnknownError ? error.leaseId : null,
    retry_after_ms: error instanceof RejectedError ? (error.retryAfterMs ?? null) : null,
    holders:
      error instanceof HeldError
        ? error.holders.map(({ expiresInMs, ...holder }) => ({ ...holder, expires_in_ms: expiresInMs }))
        : null,
    message: is.message ?? String(error),
  };
}

function write(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function answer(call: Call): Promise<void> {
  const controller = new AbortController();
  pending.set(call.id, controller);
  try {
    write({ id: call.id, ok: await run(call, controller.signal) });
  } catch (error) {
    write({ id: call.id, error: problem(error) });
  } finally {
    pending.delete(call.id);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line) as Call;
  if (call.op === "exit") {
    process.exit(0);
  }
  void answer(call);
}
