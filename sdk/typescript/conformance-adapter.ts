/** Speaks the protocol of the conformance suite: one JSON object per line, requests on stdin, answers and events on stdout. */
import { createInterface } from "node:readline";
import { systemClock } from "./src/clock.js";
import {
  Client,
  type ClientOptions,
  HeldError,
  type Keys,
  type Lease,
  type LockOptions,
  LostError,
  RejectedError,
  RingfenceError,
  UnknownError,
} from "./src/index.js";

/** A request. Each operation has fields of its own. */
interface Call {
  readonly id: number;
  readonly op: string;
  readonly [field: string]: unknown;
}

/** A process of Node.js cannot fork. */
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
];

const clients = new Map<string, Client>();
const leases = new Map<string, Lease>();
/** The acquires that can be cancelled, by the id of their request. */
const pending = new Map<number, AbortController>();
let jumpedMs = 0;

const played = {
  monotonic: () => systemClock.monotonic() + jumpedMs,
  uptime: () => systemClock.uptime() + jumpedMs,
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
  clients.set(String(call.client), new Client(clock === "played" ? { ...options, clock: played } : options));
}

function keep(name: unknown, lease: Lease): object {
  leases.set(String(name), lease);
  lease.lost.then((reason) => write({ event: "lost", lease: name, reason }));
  const fences = Object.fromEntries(lease.keys.map((key) => [key, lease.fence(key)]));
  return { lease_id: lease.leaseId, token: lease.token, fences, state: lease.state };
}

async function using(call: Call, signal: AbortSignal): Promise<object> {
  await named(clients, call.client).using(call.keys as Keys, lockOptions(call, signal), async (lease, lost) => {
    keep(call.lease, lease);
    if (call.body === "until_lost") {
      await new Promise((resolve) => lost.addEventListener("abort", resolve, { once: true }));
    } else if (typeof call.ms === "number") {
      await new Promise((resolve) => setTimeout(resolve, Number(call.ms)));
    }
    if (call.body === "raise") {
      throw new BodyError("the body failed");
    }
  });
  return {};
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
      return keep(call.lease, await named(clients, call.client).acquire(call.keys as Keys, lockOptions(call, signal)));
    case "adopt":
      return keep(call.lease, await named(clients, call.client).adopt(String(call.lease_id), { signal }));
    case "using":
      return await using(call, signal);
    case "cancel":
      pending.get(Number(call.target))?.abort();
      return {};
    case "renew":
      await named(leases, call.lease).renew(typeof call.ttl_ms === "number" ? call.ttl_ms : undefined);
      return {};
    case "release":
      await named(leases, call.lease).release();
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
      jumpedMs += Number(call.advance_ms);
      return {};
    case "close":
      await named(clients, call.client).close();
      return {};
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
    reason: error instanceof LostError ? error.reason : null,
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
