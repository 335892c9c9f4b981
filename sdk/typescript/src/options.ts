/** What callers say, checked before anything is sent. */
import type { Clock } from "./clock.js";
import type { Encryption } from "./connections.js";
import { InvalidError } from "./errors.js";
import { Files } from "./files.js";
import { type Hooks, type Tell, teller } from "./hooks.js";
import { type Warn, type WarningCode, warner } from "./warn.js";

/** How to reach a cluster. All URLs are https, or none is. */
export interface ClientOptions {
  /** The nodes: `https://host:port` or `http://host:port`. Some of them are enough. */
  urls: readonly string[];
  /** The secret that shows the nodes who the client is. It is sent to nodes whose certificates are verified, and never over plain http. */
  credential?: string;
  /** The file with the authorities that sign the nodes' certificates, in PEM. By default, those that Node trusts. */
  ca?: string;
  /** The file with the client's certificate, in PEM, if the nodes require one. It is read again when it has changed. */
  cert?: string;
  /** The file with the private key of the certificate, in PEM. */
  key?: string;
  /** Is told what no call can tell, as a renewal that the cluster refuses. By default, these are warnings of the process. */
  onWarning?: (code: WarningCode, message: string) => void;
  /** Is told what becomes of leases, for logs, metrics and traces. */
  hooks?: Hooks;
  /** Other clocks than the machine's, for tests. */
  clock?: Clock;
}

/** How to make one call. */
export interface CallOptions {
  /** How long the whole call takes at most, in milliseconds, also in an outage. */
  timeout?: number;
}

/** A key, and how to hold it. */
export interface Claim {
  key: string;
  /** Shares the key with other shared holders: a read lock. */
  shared?: boolean;
  /** Shares the key with at most this many holders in all: a semaphore. */
  limit?: number;
}

/** One key or several: all of them are granted in one step, or none. */
export type Keys = string | Claim | readonly (string | Claim)[];

/** How to hold keys. All times are in milliseconds. */
export interface LockOptions {
  /** How long others wait if this process vanishes: 100 ms to 24 h, 15 s by default. Below a few seconds, it survives no change of the leader. */
  ttl?: number;
  /** How long to wait in the queue at most. By default, for as long as it takes. An outage makes the call some seconds longer: see `timeout`. */
  wait?: number;
  /** How long the whole call takes at most, also in an outage. */
  timeout?: number;
  /** Shares the keys with other shared holders: read locks. */
  shared?: boolean;
  /** Shares the keys with at most this many holders in all: a semaphore. */
  limit?: number;
  /** A public label of the holder, of at most 256 bytes. */
  holder?: string;
  /** Public data of the holder, of at most 4 KiB. */
  metadata?: Readonly<Record<string, string>>;
  /** The lease is lost after this time, although it could be renewed. */
  maxHold?: number;
  /** The keys stay taken for at least this long after the grant, also if the lease is released before. */
  holdAtLeast?: number;
  /** Whether the client renews the lease: by default it does. */
  renew?: boolean;
  /** Stops the acquiring, with the signal's reason. It does not touch a lease that was granted. */
  signal?: AbortSignal;
}

/** `LockOptions`, checked. */
export interface LockRequest {
  readonly claims: readonly { readonly key: string; readonly mode?: "shared"; readonly limit?: number }[];
  readonly ttlMs: number;
  /** Infinite by default. */
  readonly waitMs: number;
  readonly timeoutMs: number | undefined;
  readonly holder: string | undefined;
  readonly metadata: Readonly<Record<string, string>> | undefined;
  readonly maxHoldMs: number;
  readonly holdAtLeastMs: number;
  readonly renews: boolean;
}

export const MIN_TTL_MS = 100;
export const MAX_TTL_MS = 24 * 3_600 * 1_000;
const DEFAULT_TTL_MS = 15_000;
const MAX_KEYS = 64;
/** How long `close` waits. */
const CLOSE_MS = 5_000;
const LOCK_OPTIONS = [
  "ttl",
  "wait",
  "timeout",
  "shared",
  "limit",
  "holder",
  "metadata",
  "maxHold",
  "holdAtLeast",
  "renew",
  "signal",
];
const CLIENT_OPTIONS = ["urls", "credential", "ca", "cert", "key", "onWarning", "hooks", "clock"];

/** Checks an acquire. Throws an `InvalidError` that names the field. */
export function parseLock(keys: Keys, options: LockOptions): LockRequest {
  checkNames(options, LOCK_OPTIONS, "options");
  const list: readonly unknown[] = Array.isArray(keys) ? keys : [keys];
  if (list.length === 0 || list.length > MAX_KEYS) {
    throw new InvalidError("keys", `a lease has from 1 to ${MAX_KEYS} keys, not ${list.length}`);
  }
  const claims = list.map((claim, index) =>
    parseClaim(claim, Array.isArray(keys) ? `keys[${index}]` : "keys", options),
  );
  const repeated = claims.findIndex((claim, index) => claims.findIndex(({ key }) => key === claim.key) < index);
  if (repeated >= 0) {
    throw new InvalidError(`keys[${repeated}]`, "the same key stands there twice");
  }
  if (options.signal !== undefined && !(options.signal instanceof AbortSignal)) {
    throw new InvalidError("signal", "is no AbortSignal");
  }
  if (options.renew !== undefined && typeof options.renew !== "boolean") {
    throw new InvalidError("renew", "is neither true nor false");
  }
  return {
    claims,
    ttlMs: parseTtl(options.ttl ?? DEFAULT_TTL_MS),
    waitMs: duration(options.wait, "wait") ?? Number.POSITIVE_INFINITY,
    timeoutMs: duration(options.timeout, "timeout"),
    holder: options.holder === undefined ? undefined : text(options.holder, "holder", 256),
    metadata: options.metadata === undefined ? undefined : parseMetadata(options.metadata),
    maxHoldMs: parseMaxHold(options.maxHold),
    holdAtLeastMs: parseHoldAtLeast(options.holdAtLeast),
    renews: options.renew ?? true,
  };
}

/** Checks a time-to-live. */
export function parseTtl(ms: number): number {
  if (typeof ms !== "number" || !(ms >= MIN_TTL_MS && ms <= MAX_TTL_MS)) {
    throw new InvalidError("ttl", "a time-to-live is from 100 ms to 24 h, in milliseconds");
  }
  return Math.floor(ms);
}

/** Checks the id of a lease. */
export function parseLeaseId(leaseId: string): string {
  if (typeof leaseId !== "string" || !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(leaseId)) {
    throw new InvalidError("leaseId", "is no UUID");
  }
  return leaseId.toLowerCase();
}

/** Checks the options of a call. */
export function parseCall(options: CallOptions): { timeoutMs: number | undefined } {
  checkNames(options, ["timeout"], "options");
  return { timeoutMs: duration(options.timeout, "timeout") };
}

/** Checks the options of `close`. */
export function parseClose(options: { within?: number }): { withinMs: number } {
  checkNames(options, ["within"], "options");
  return { withinMs: duration(options.within, "within") ?? CLOSE_MS };
}

/** Checks the options of a client, and reads its files. */
export function parseClient(options: ClientOptions): {
  urls: readonly string[];
  encryption: Encryption | undefined;
  warn: Warn;
  tell: Tell;
} {
  checkNames(options, CLIENT_OPTIONS, "options");
  const { urls, credential, ca, cert, key, onWarning, hooks } = options;
  if (onWarning !== undefined && typeof onWarning !== "function") {
    throw new InvalidError("onWarning", "is no function");
  }
  const warn = warner(onWarning);
  if (hooks !== undefined && (typeof hooks !== "object" || hooks === null)) {
    throw new InvalidError("hooks", "is no object");
  }
  const tell = teller(hooks ?? {}, warn);
  if (!Array.isArray(urls) || !urls.every((url) => typeof url === "string")) {
    throw new InvalidError("urls", "is no array of strings");
  }
  if (credential !== undefined && (typeof credential !== "string" || !/^[\x21-\x7e]+$/.test(credential))) {
    throw new InvalidError("credential", "must be visible ASCII characters without spaces");
  }
  if ((cert === undefined) !== (key === undefined)) {
    throw cert === undefined
      ? new InvalidError("cert", "is missing: there is a key")
      : new InvalidError("key", "is missing: the certificate has a key");
  }
  const isEncrypted = urls.some((url) => url.trim().startsWith("https:"));
  if (!isEncrypted) {
    const given = (
      [
        ["credential", credential],
        ["ca", ca],
        ["cert", cert],
      ] as const
    ).find(([, value]) => value !== undefined);
    if (given !== undefined) {
      throw new InvalidError(given[0], "is for https, and the URLs are plain");
    }
    return { urls, encryption: undefined, warn, tell };
  }
  const own = cert === undefined || key === undefined ? {} : { cert, key };
  const files = new Files({ ...(ca === undefined ? {} : { ca }), ...own }, warn);
  const encryption = { context: () => files.context(), hasOwnAuthority: ca !== undefined, credential };
  return { urls, encryption, warn, tell };
}

function parseClaim(claim: unknown, field: string, options: LockOptions): LockRequest["claims"][number] {
  if (typeof claim === "string") {
    return { key: parseKey(claim, field), ...mode(options.shared, options.limit, "") };
  }
  if (typeof claim !== "object" || claim === null) {
    throw new InvalidError(field, "is neither a string nor an object with a key");
  }
  checkNames(claim, ["key", "shared", "limit"], field);
  const { key, shared, limit } = claim as Claim;
  const own = shared === undefined && limit === undefined;
  return {
    key: parseKey(key, `${field}.key`),
    ...(own ? mode(options.shared, options.limit, "") : mode(shared, limit, `${field}.`)),
  };
}

function mode(shared: boolean | undefined, limit: number | undefined, prefix: string) {
  if (shared !== undefined && typeof shared !== "boolean") {
    throw new InvalidError(`${prefix}shared`, "is neither true nor false");
  }
  if (limit !== undefined && !(Number.isInteger(limit) && limit >= 1 && limit < 2 ** 32)) {
    throw new InvalidError(`${prefix}limit`, "a limit is an integer from 1 to 2^32 - 1");
  }
  if (limit !== undefined) {
    if (shared === false) {
      throw new InvalidError(`${prefix}limit`, "only a shared key has a limit");
    }
    return { mode: "shared", limit } as const;
  }
  return shared === true ? ({ mode: "shared" } as const) : {};
}

function parseKey(key: unknown, field: string): string {
  const checked = text(key, field, 512);
  if (checked === "") {
    throw new InvalidError(field, "a key must not be empty");
  }
  if (/\p{Cc}/u.test(checked)) {
    throw new InvalidError(field, "a key must not contain control characters");
  }
  if (checked.split("/").some((segment) => segment === "" || segment === "." || segment === "..")) {
    throw new InvalidError(field, "a key must not contain an empty, `.` or `..` segment between its slashes");
  }
  return checked;
}

function parseMetadata(metadata: unknown): Record<string, string> {
  if (typeof metadata !== "object" || metadata === null) {
    throw new InvalidError("metadata", "is no object");
  }
  const entries = Object.entries(metadata).map(
    ([name, value]) => [text(name, "metadata", 4_096), text(value, `metadata.${name}`, 4_096)] as const,
  );
  if (entries.reduce((bytes, [name, value]) => bytes + Buffer.byteLength(name + value), 0) > 4_096) {
    throw new InvalidError("metadata", "metadata has at most 4,096 bytes in total");
  }
  return Object.fromEntries(entries);
}

function parseHoldAtLeast(ms: number | undefined): number {
  const checked = duration(ms, "holdAtLeast") ?? 0;
  if (checked > MAX_TTL_MS) {
    throw new InvalidError("holdAtLeast", "is at most 24 h");
  }
  return checked;
}

function parseMaxHold(ms: number | undefined): number {
  if (ms !== undefined && !(typeof ms === "number" && ms > 0)) {
    throw new InvalidError("maxHold", "is no time in milliseconds: more than 0");
  }
  return ms ?? Number.POSITIVE_INFINITY;
}

function duration(ms: number | undefined, field: string): number | undefined {
  if (ms !== undefined && !(typeof ms === "number" && ms >= 0)) {
    throw new InvalidError(field, "is no time in milliseconds");
  }
  return ms;
}

function text(value: unknown, field: string, maxBytes: number): string {
  if (typeof value !== "string") {
    throw new InvalidError(field, "is no string");
  }
  if (/\p{Surrogate}/u.test(value)) {
    throw new InvalidError(field, "has half of a surrogate pair");
  }
  if (Buffer.byteLength(value) > maxBytes) {
    throw new InvalidError(field, `has more than ${maxBytes.toLocaleString("en")} bytes of UTF-8`);
  }
  return value;
}

function checkNames(given: object, known: readonly string[], field: string): void {
  if (typeof given !== "object" || given === null) {
    throw new InvalidError(field, "is no object");
  }
  const unknown = Object.keys(given).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new InvalidError(unknown, `there is no such option; those are ${known.join(", ")}`);
  }
}
