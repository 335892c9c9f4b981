/**
 * The rules of a cluster, in memory: who has which key, who waits for it, and what a node answers. For tests of programs that use the client.
 *
 * A lease fits a key if its mode goes together with those of all that came before it on that key, be they holders or waiters. So nobody overtakes,
 * and only an end lets others in. Each grant, each end, and each time that a lease enters a queue takes the next number; that of the grant is the
 * token. Time is what its owner says: what is due by then happens in its order, each at its own time.
 */
import { type End, gone, problem, type Result } from "./fake-answers.js";

interface Claim {
  readonly key: string;
  readonly mode: "exclusive" | "shared";
  readonly limit: number | null;
}

/** An acquire, as it is asked for. */
export interface Wanted {
  readonly keys: readonly (string | { key: string; mode?: "exclusive" | "shared"; limit?: number | null })[];
  readonly ttl_ms?: number;
  readonly wait_ms?: number;
  readonly keep_place?: boolean;
  readonly holder?: string | null;
  readonly metadata?: Readonly<Record<string, string>>;
}

/** A request that has not been answered, for a lease that waits. */
export interface Request {
  /** The place is kept until then. */
  untilMs: number;
  /** When it is answered with the place, if it still waits then. */
  readonly answerMs: number;
  readonly answer: ((result: Result) => void) | undefined;
  /** Its connection has closed: it keeps no place from then on. */
  goneMs: number;
}

interface Lease {
  readonly id: string;
  readonly claims: readonly Claim[];
  readonly holder: string | null;
  readonly metadata: Readonly<Record<string, string>>;
  readonly sinceMs: number;
  ttlMs: number;
  /** Once it is granted. */
  token: number | undefined;
  deadlineMs: number;
  /** What may end it by a closed connection: nothing else has told of it. */
  requests: Request[];
}

const KEPT_MS = 5_000;
const GONE_MS = 2_000;
const REMEMBERED_MS = 60_000;
/** How long after its wait a request may still be answered. */
const ANSWERED_MS = 20_000;
const NEVER = Number.POSITIVE_INFINITY;

export class FakeTable {
  #atMs = 0;
  #number = 1_000;
  readonly #leases = new Map<string, Lease>();
  /** Who has, and who waits for, each key, in the order of their coming. */
  readonly #locks = new Map<string, Lease[]>();
  readonly #ended = new Map<string, { readonly end: End; readonly atMs: number }>();

  /** Does what is due until then. */
  run(nowMs: number): void {
    for (let due = this.nextDueMs; due <= nowMs; due = this.nextDueMs) {
      this.#atMs = Math.max(due, this.#atMs);
      this.#doDue();
    }
    this.#atMs = Math.max(nowMs, this.#atMs);
    for (const [id, { atMs }] of this.#ended) {
      if (this.#atMs - atMs > REMEMBERED_MS) {
        this.#ended.delete(id);
      }
    }
  }

  /** When something happens by itself. */
  get nextDueMs(): number {
    let due = NEVER;
    for (const { deadlineMs, requests, token } of this.#leases.values()) {
      due = Math.min(due, deadlineMs, ...requests.map(({ goneMs }) => goneMs));
      if (token === undefined) {
        due = Math.min(due, ...requests.map(({ answerMs }) => answerMs));
      }
    }
    return due;
  }

  #doDue(): void {
    for (const lease of this.#leases.values()) {
      const gone = lease.requests.filter(({ goneMs }) => goneMs <= this.#atMs);
      if (gone.length > 0) {
        lease.requests = lease.requests.filter((request) => !gone.includes(request));
        if (lease.requests.length === 0) {
          this.#end(lease, "abandoned");
        } else if (lease.token === undefined) {
          lease.deadlineMs = Math.max(...lease.requests.map(({ untilMs }) => untilMs));
        }
      } else if (lease.deadlineMs <= this.#atMs) {
        this.#end(lease, lease.token === undefined ? "timed-out" : "expired");
      } else if (lease.token === undefined) {
        for (const request of lease.requests.filter(({ answerMs }) => answerMs <= this.#atMs)) {
          this.#answer(lease, request, this.#waiting(lease));
        }
      }
    }
  }

  /** Acquires. If it has to wait, and `answer` is given, that gets the result later. */
  acquire(id: string, wanted: Wanted, answer: Request["answer"]): Result | Request {
    const waitMs = wanted.wait_ms ?? 0;
    const keepMs = wanted.keep_place === true ? KEPT_MS : 0;
    const untilMs = this.#atMs + waitMs + keepMs;
    const request: Request = {
      untilMs,
      answerMs: waitMs > 0 && keepMs > 0 ? this.#atMs + waitMs : NEVER,
      answer: waitMs > 0 ? answer : undefined,
      goneMs: NEVER,
    };
    const claims = wanted.keys.map((claim) => {
      const { key, mode = "exclusive", limit = null } = typeof claim === "string" ? { key: claim } : claim;
      return { key, mode, limit };
    });
    const known = this.#leases.get(id);
    if (known !== undefined) {
      return this.#repeat(known, claims, request);
    }
    const ended = this.#ended.get(id);
    if (ended !== undefined) {
      return gone(ended.end);
    }
    const lease: Lease = {
      id,
      claims,
      holder: wanted.holder ?? null,
      metadata: wanted.metadata ?? {},
      sinceMs: this.#atMs,
      ttlMs: wanted.ttl_ms ?? 15_000,
      token: undefined,
      deadlineMs: untilMs,
      requests: [request],
    };
    const fits = claims.every((claim) => goesWith(this.#lock(claim.key), claim));
    if (!fits && waitMs === 0 && keepMs === 0) {
      return this.#held(lease);
    }
    this.#leases.set(id, lease);
    for (const { key } of claims) {
      this.#locks.set(key, [...this.#lock(key), lease]);
    }
    if (fits) {
      this.#grant(lease);
      return { status: 201, body: this.#grantOf(lease) };
    }
    this.#number += 1;
    return request.answer === undefined ? this.#waiting(lease) : request;
  }

  #repeat(lease: Lease, claims: readonly Claim[], request: Request): Result | Request {
    if (JSON.stringify(lease.claims) !== JSON.stringify(claims)) {
      return problem("lease-mismatch", 409, "this lease_id was used with other keys: use a new one");
    }
    if (lease.token !== undefined) {
      lease.requests = [];
      return { status: 200, body: this.#grantOf(lease) };
    }
    lease.requests.push(request);
    if (lease.deadlineMs > request.untilMs) {
      request.untilMs += KEPT_MS;
    }
    lease.deadlineMs = Math.max(...lease.requests.map(({ untilMs }) => untilMs));
    return request.answer === undefined ? this.#waiting(lease) : request;
  }

  renew(id: string, ttlMs: number | undefined): Result {
    const lease = this.#leases.get(id);
    if (lease === undefined) {
      const ended = this.#ended.get(id);
      return ended === undefined ? problem("unknown-lease", 404, "no lease with this id exists") : gone(ended.end);
    }
    if (lease.token === undefined) {
      return problem("not-granted", 409, "the lease is still in the queue: repeat its PUT instead");
    }
    lease.ttlMs = ttlMs ?? lease.ttlMs;
    lease.deadlineMs = Math.max(lease.deadlineMs, this.#atMs + lease.ttlMs);
    lease.requests = [];
    return { status: 200, body: this.#grantOf(lease) };
  }

  release(id: string): Result {
    const lease = this.#leases.get(id);
    const ended = this.#ended.get(id)?.end ?? "released";
    if (lease !== undefined) {
      this.#end(lease, "released");
    } else if (ended !== "released" && ended !== "timed-out") {
      return gone(ended);
    } else {
      this.#ended.set(id, { end: ended, atMs: this.#atMs });
    }
    return { status: 204 };
  }

  /** Ends the lease that holds the key with this token. */
  end(key: string, token: number, end: "revoked" | "expired"): Result {
    const lease = this.#lock(key).find((lease) => lease.token === token);
    if (lease === undefined) {
      return problem("not-live", 409, "no live lease holds this key with this token");
    }
    this.#end(lease, end);
    return { status: 204 };
  }

  /** The connection of a request has closed before it was answered. */
  hungUp(id: string, request: Request | undefined): void {
    const lease = this.#leases.get(id);
    const own = request ?? (lease?.token === undefined ? undefined : lease.requests[0]);
    if (own !== undefined) {
      own.goneMs = this.#atMs + GONE_MS;
    }
  }

  /** Answers all that wait and whose place is kept. */
  letGo(): void {
    for (const lease of this.#leases.values()) {
      for (const request of lease.requests.filter(({ answerMs }) => answerMs < NEVER && lease.token === undefined)) {
        this.#answer(lease, request, this.#waiting(lease));
      }
    }
  }

  /** How many there are. */
  get counts() {
    const live_leases = [...this.#leases.values()].filter(({ token }) => token !== undefined).length;
    return { live_leases, waiters: this.#leases.size - live_leases, revision: this.#number, at_ms: 0 };
  }

  /** The views of all keys that begin so. */
  keys(prefix: string) {
    return [...this.#locks.keys()].filter((key) => key.startsWith(prefix)).map((key) => this.key(key));
  }

  /** The public view of a key. */
  key(key: string) {
    const holders = this.#holders(key).map((lease) => ({
      token: lease.token as number,
      holder: lease.holder,
      ...modeOf(lease, key),
      ttl_ms: lease.ttlMs,
      expires_in_ms: this.#leftMs(lease),
      metadata: lease.metadata,
    }));
    const waiters = this.#lock(key).filter(({ token }) => token === undefined);
    return {
      key,
      fence: this.#fence(key),
      revision: this.#number,
      holders,
      waiters: waiters.map((lease) => ({
        holder: lease.holder,
        mode: modeOf(lease, key).mode,
        waited_ms: Math.floor(this.#atMs - lease.sinceMs),
      })),
    };
  }

  #lock(key: string): readonly Lease[] {
    return this.#locks.get(key) ?? [];
  }

  #holders(key: string): Lease[] {
    const holders = this.#lock(key).filter(({ token }) => token !== undefined);
    return holders.sort((a, b) => (a.token ?? 0) - (b.token ?? 0));
  }

  /** If several requests may be answered with it, a closed connection does not end it. */
  #grant(lease: Lease): void {
    const answerable = lease.requests.filter(({ untilMs }) => untilMs + ANSWERED_MS >= this.#atMs);
    lease.requests = answerable.length === 1 ? answerable : [];
    this.#number += 1;
    lease.token = this.#number;
    lease.deadlineMs = this.#atMs + lease.ttlMs;
  }

  #end(lease: Lease, end: End): void {
    this.#number += 1;
    this.#leases.delete(lease.id);
    this.#ended.set(lease.id, { end, atMs: this.#atMs });
    for (const { key } of lease.claims) {
      const others = this.#lock(key).filter((other) => other !== lease);
      if (others.length > 0) {
        this.#locks.set(key, others);
      } else {
        this.#locks.delete(key);
      }
    }
    for (const request of lease.requests) {
      request.answer?.(gone(end));
    }
    for (const waiter of new Set(lease.claims.flatMap(({ key }) => this.#lock(key)))) {
      if (waiter.token === undefined && this.#mayEnter(waiter)) {
        const { requests } = waiter;
        this.#grant(waiter);
        for (const request of requests) {
          request.answer?.({ status: 201, body: this.#grantOf(waiter) });
        }
      }
    }
  }

  #mayEnter(waiter: Lease): boolean {
    return waiter.claims.every((claim) => {
      const lock = this.#lock(claim.key);
      return goesWith(lock.slice(0, lock.indexOf(waiter)), claim);
    });
  }

  /** Answers with the place, which is kept for a while. */
  #answer(lease: Lease, request: Request, result: Result): void {
    lease.requests = lease.requests.map((other) =>
      other === request ? { ...request, answerMs: NEVER, answer: undefined } : other,
    );
    request.answer?.(result);
  }

  #fence(key: string): number {
    return this.#holders(key)[0]?.token ?? this.#number + 1;
  }

  #leftMs({ deadlineMs }: Lease): number {
    return Math.max(Math.floor(deadlineMs - this.#atMs), 0);
  }

  #grantOf(lease: Lease): object {
    return {
      lease_id: lease.id,
      state: "granted",
      token: lease.token,
      holder: lease.holder,
      ttl_ms: lease.ttlMs,
      expires_in_ms: this.#leftMs(lease),
      keys: lease.claims.map((claim) => ({ ...claim, fence: this.#fence(claim.key) })),
    };
  }

  #waiting({ id, claims }: Lease): Result {
    const ahead = claims.map(({ key }) =>
      this.#lock(key)
        .filter(({ token }) => token === undefined)
        .findIndex((other) => other.id === id),
    );
    return { status: 202, body: { lease_id: id, state: "waiting", ahead: Math.max(...ahead, 0) } };
  }

  #held({ id, claims }: Lease): Result {
    const taken = claims.filter((claim) => !goesWith(this.#lock(claim.key), claim));
    const holders = taken.flatMap(({ key }) =>
      this.#holders(key).map((lease) => ({
        key,
        token: lease.token,
        holder: lease.holder,
        ...modeOf(lease, key),
        expires_in_ms: this.#leftMs(lease),
      })),
    );
    const queues = claims.map(({ key }) => this.#lock(key).filter(({ token }) => token === undefined).length);
    const more = { lease_id: id, holders, waiters: Math.max(...queues) };
    return problem("held", 409, "another lease holds a key: set wait_ms to wait for it", more);
  }
}

/** Whether a claim goes together with all these on its key. */
function goesWith(others: readonly Lease[], { key, mode, limit }: Claim): boolean {
  const modes = others.map((lease) => modeOf(lease, key));
  if (mode === "exclusive") {
    return modes.length === 0;
  }
  const limits = [limit, ...modes.map(({ limit }) => limit)].filter((limit) => limit !== null);
  return modes.every(({ mode }) => mode === "shared") && limits.every((limit) => modes.length < limit);
}

function modeOf(lease: Lease, key: string): Pick<Claim, "mode" | "limit"> {
  const { mode = "exclusive", limit = null } = lease.claims.find((claim) => claim.key === key) ?? {};
  return { mode, limit };
}
