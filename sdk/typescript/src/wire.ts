/** What nodes answer. Everything is checked before it is believed: something in between may have answered. */

/** How a key is held. */
export interface GrantedKey {
  readonly key: string;
  /** The lowest token that may still be live on the key. */
  readonly fence: number;
}

/** A granted lease. */
export interface Grant {
  readonly leaseId: string;
  readonly token: number;
  readonly ttlMs: number;
  /** From when the request was sent. */
  readonly expiresInMs: number;
  readonly keys: readonly GrantedKey[];
}

/** A live lease that is in the way of an acquire. */
export interface Holder {
  readonly key: string;
  readonly token: number;
  /** The label that it chose. */
  readonly holder: string | null;
  readonly mode: string;
  readonly expiresInMs: number;
}

/** Why a node refused a request (RFC 9457). */
export interface Problem {
  /** Its name, as `held`. */
  readonly name: string;
  readonly status: number;
  readonly detail: string;
  /** How a lease ended. */
  readonly reason: string | null;
  readonly holders: readonly Holder[];
  readonly waiters: number;
}

/** The result of one renewal of many. */
export type RenewalResult = { readonly grant: Grant } | { readonly problem: Problem };

const URN = "urn:ringfence:problem:";

/** The grant in a 2xx. Throws if it is none, or one of another lease. */
export function readGrant(json: unknown, leaseId: string): Grant {
  const grant = object(json, "a grant");
  if (grant.state !== "granted" || grant.lease_id !== leaseId) {
    throw new TypeError("it is no grant of this lease");
  }
  return {
    leaseId,
    token: integer(grant, "token"),
    ttlMs: integer(grant, "ttl_ms"),
    expiresInMs: integer(grant, "expires_in_ms"),
    keys: array(grant, "keys").map((item) => {
      const granted = object(item, "a key");
      return { key: text(granted, "key"), fence: integer(granted, "fence") };
    }),
  };
}

/** Who has a key. */
export interface KeyView {
  readonly holders: readonly { readonly token: number; readonly holder: string | null }[];
}

/** The public view of this key. */
export function readKey(json: unknown, key: string): KeyView {
  const view = object(json, "a key");
  if (view.key !== key) {
    throw new TypeError("it is another key");
  }
  const holders = array(view, "holders").map((item) => {
    const holder = object(item, "a holder");
    return { token: integer(holder, "token"), holder: typeof holder.holder === "string" ? holder.holder : null };
  });
  return { holders };
}

/** Checks that a 202 says that this lease is in the queue. */
export function readWaiting(json: unknown, leaseId: string): void {
  const waiting = object(json, "a waiting lease");
  if (waiting.state !== "waiting" || waiting.lease_id !== leaseId) {
    throw new TypeError("it is not about this lease");
  }
}

/** The results for these leases, in their order. */
export function readRenewals(json: unknown, leaseIds: readonly string[]): RenewalResult[] {
  return readResults(json, leaseIds.length).map(({ status, body }, index) => {
    const problem = readProblem(body, status);
    return problem === undefined ? { grant: readGrant(body, leaseIds[index] as string) } : { problem };
  });
}

/** The results of so many operations. */
export function readResults(json: unknown, count: number): { status: number; body: unknown }[] {
  const results = array(object(json, "an answer"), "results");
  if (results.length !== count) {
    throw new TypeError(`${results.length} results of ${count} operations`);
  }
  return results.map((item) => {
    const result = object(item, "a result");
    return { status: integer(result, "status"), body: result.body ?? undefined };
  });
}

/** The problem that a node describes in a response of this status; `undefined` if no node wrote it. */
export function readProblem(json: unknown, status: number): Problem | undefined {
  try {
    const problem = object(json, "a problem");
    const type = text(problem, "type");
    if (!type.startsWith(URN) || problem.status !== status) {
      return undefined;
    }
    return {
      name: type.slice(URN.length),
      status,
      detail: text(problem, "detail"),
      reason: typeof problem.reason === "string" ? problem.reason : null,
      holders: problem.holders === undefined ? [] : array(problem, "holders").map(readHolder),
      waiters: problem.waiters === undefined ? 0 : integer(problem, "waiters"),
    };
  } catch {
    return undefined;
  }
}

function readHolder(json: unknown): Holder {
  const holder = object(json, "a holder");
  return {
    key: text(holder, "key"),
    token: integer(holder, "token"),
    holder: typeof holder.holder === "string" ? holder.holder : null,
    mode: text(holder, "mode"),
    expiresInMs: integer(holder, "expires_in_ms"),
  };
}

function object(json: unknown, what: string): Record<string, unknown> {
  if (typeof json !== "object" || json === null || Array.isArray(json)) {
    throw new TypeError(`${what} is not an object`);
  }
  return json as Record<string, unknown>;
}

function array(json: Record<string, unknown>, name: string): unknown[] {
  const value = json[name];
  if (!Array.isArray(value)) {
    throw new TypeError(`${name} is not an array`);
  }
  return value;
}

function text(json: Record<string, unknown>, name: string): string {
  const value = json[name];
  if (typeof value !== "string") {
    throw new TypeError(`${name} is not a string`);
  }
  return value;
}

/** From 0 to 2^53, which is the largest fence. */
function integer(json: Record<string, unknown>, name: string): number {
  const value = json[name];
  if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > 2 ** 53) {
    throw new TypeError(`${name} is not an integer`);
  }
  return value;
}
