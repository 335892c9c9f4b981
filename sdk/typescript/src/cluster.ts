/**
 * Calls to the cluster: attempts at one node after another, until an [outcome](./outcome.ts) is definite.
 *
 * **Doubt is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about it, nor does a denial; only
 * *done* or *refused* resolves it. All attempts of a call together take 5 s, far less than the 60 s after which the cluster may forget an id.
 */
import type { Clock } from "./clock.js";
import {
  type LossReason,
  LostError,
  RejectedError,
  type RingfenceError,
  UnauthorizedError,
  UnavailableError,
  UnknownError,
} from "./errors.js";
import type { Confirmation } from "./lifetime.js";
import type { Node, Nodes } from "./nodes.js";
import { isDenial, type Outcome, outcomeOf, outcomeWithout } from "./outcome.js";
import { Distrust, Failure, type Request, type Response } from "./server.js";
import { Stop } from "./stop.js";
import { Backoff, orStop, sleep } from "./timers.js";
import { type KeyView, type Problem, readGrant, readKey } from "./wire.js";

/** How long a call is repeated without a definite outcome. */
export const RETRY_MS = 5_000;
/** How long one node may take if another can be asked. An election takes about a second, but a node gives up only after 5 s. */
export const ATTEMPT_MS = 2_000;
/** How long a release is repeated in the background. */
const RELEASE_MS = 30_000;

/** A lease, as it is named when it is not given back. */
export interface Named {
  readonly leaseId: string;
  readonly keys: readonly string[];
}

type Read<T> = (json: unknown, status: number) => T;
type Done<T> = Extract<Outcome<T>, { is: "done" }>;

/**
 * The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows. Until then attempts may
 * share requests with others; later they are alone, since something in between may not let a batch pass.
 */
export class Attempts {
  readonly #nodes: Nodes;
  readonly #stop: Stop | undefined;
  readonly #backoff = new Backoff();
  #failed = 0;
  longestPauseMs = Number.POSITIVE_INFINITY;
  /** Whether the process stays alive during a pause. */
  keepsAlive = true;
  /** Whether it changes nothing, so that it is no matter whether it was done. */
  onlyReads = false;
  /** Whether an attempt may have been done. */
  maybeDone = false;
  /** How long it has waited for a turn. The cluster is not to blame for that. */
  idleMs = 0;
  lastFailure = "";
  /** The nodes with which one side did not trust the other. `undefined` once an attempt has ended otherwise. */
  #distrusting: Set<Node> | undefined = new Set();

  constructor(nodes: Nodes, stop?: Stop) {
    this.#nodes = nodes;
    this.#stop = stop;
  }

  /** One attempt. Throws only the reason of its `Stop`. */
  async attempt<T>(request: Request, timeMs: number, read: Read<T>): Promise<Outcome<T>> {
    if (this.#failed > 0 && this.#failed % this.#nodes.count === 0) {
      await sleep(Math.min(this.#backoff.next(), this.longestPauseMs), this.#stop, this.keepsAlive);
    }
    const node = this.#nodes.best;
    const asked = performance.now();
    let outcome: Outcome<T>;
    let response: Response | undefined;
    let failure: Failure | undefined;
    try {
      response = await this.#send(node, request, timeMs);
      outcome = outcomeOf(response, read);
    } catch (error) {
      if (!(error instanceof Failure)) {
        throw error;
      }
      failure = error;
      outcome = outcomeWithout(error);
    }
    this.#note(node, failure);
    const isDefinite = outcome.is === "done" || outcome.is === "refused" || outcome.is === "limited";
    const stranger = this.#nodes.checkCluster(node, response?.cluster, isDefinite);
    if (stranger !== undefined) {
      outcome = outcomeWithout(stranger);
    }
    this.#record(node, outcome, response, asked);
    return outcome;
  }

  /** Whether no further attempt can help, as long as the files of both sides stay as they are. */
  get areHopeless(): boolean {
    return this.#nodes.configured.every((node) => this.#distrusting?.has(node));
  }

  #note(node: Node, failure: Failure | undefined): void {
    if (failure instanceof Distrust) {
      this.#distrusting?.add(node);
    } else {
      this.#distrusting = undefined;
    }
  }

  #record(node: Node, outcome: Outcome<unknown>, response: Response | undefined, asked: number): void {
    switch (outcome.is) {
      case "limited":
        this.lastFailure = outcome.problem.detail;
        this.#nodes.responded(node, response?.leader);
        break;
      case "done":
      case "refused":
        this.#failed = 0;
        this.#backoff.reset();
        this.#nodes.responded(node, response?.leader);
        break;
      case "not-done":
      case "ambiguous":
        this.#failed += 1;
        this.maybeDone ||= outcome.is === "ambiguous" && !this.onlyReads;
        this.lastFailure = outcome.why;
        this.#nodes.failed(node, response === undefined ? asked : undefined);
    }
  }

  /** Sends it, unless the node turns out to be silent while another may answer. */
  async #send(node: Node, request: Request, timeMs: number): Promise<Response> {
    if (!node.isMet) {
      await orStop(this.#nodes.meet(node), this.#stop);
    }
    this.#stop?.throwIfStopped();
    const hasAnother = () => this.#nodes.hasUsableBesides(node);
    if (request.operation !== undefined && this.#failed < this.#nodes.count) {
      const batched = { ...request, operation: request.operation };
      const response = await node.server.batcher.send(batched, timeMs, this.#stop, hasAnother);
      if (response !== undefined) {
        return response;
      }
    }
    return await this.#sendAlone(node, request, timeMs, hasAnother);
  }

  async #sendAlone(node: Node, request: Request, timeMs: number, hasAnother: () => boolean): Promise<Response> {
    const broken = new Stop();
    const ignore = this.#stop?.listen((reason) => broken.stop(reason));
    const turn = request.isApart === undefined ? this.#nodes.alone.ask() : undefined;
    const asked = performance.now();
    try {
      if (turn?.isReady === false) {
        await orStop(new Promise<void>((resolve) => turn.whenReady(resolve)), this.#stop);
        this.idleMs += performance.now() - asked;
      }
      const unwatch = node.server.pulse.watch(() => {
        if (hasAnother()) {
          broken.stop(new Failure(true, "it does not answer"));
        }
      });
      try {
        return await node.server.send(request, timeMs, broken);
      } finally {
        unwatch();
      }
    } finally {
      turn?.end();
      ignore?.();
    }
  }

  /**
   * Attempts until the outcome is definite, or `retryMs` is over. Throws a `RingfenceError`, or the reason of its `Stop`. What is about a lease that
   * is held here goes on where no attempt can help: certificates may be replaced while it is.
   */
  async call<T>(request: Request, leaseId: string, retryMs: number, read: Read<T>, isHeld = true): Promise<Done<T>> {
    // The time for that is not taken from the attempts.
    await orStop(this.#nodes.resolve(), this.#stop);
    const begun = performance.now();
    for (;;) {
      const leftMs = Math.max(retryMs - (performance.now() - begun - this.idleMs), 100);
      const timeMs = Math.min(leftMs, this.#nodes.hasAnother ? ATTEMPT_MS : RETRY_MS);
      const outcome = await this.attempt(request, timeMs, read);
      const pastMs = performance.now() - begun - this.idleMs;
      if (outcome.is === "done") {
        return outcome;
      }
      if (outcome.is === "refused") {
        throw this.refusal(outcome.problem, leaseId);
      }
      if (outcome.is === "limited") {
        if (pastMs + outcome.retryAfterMs > retryMs) {
          throw this.limit(outcome.problem, outcome.retryAfterMs, leaseId);
        }
        await sleep(outcome.retryAfterMs, this.#stop);
      } else if (pastMs >= retryMs || (this.areHopeless && !isHeld)) {
        throw this.failure(leaseId);
      }
    }
  }

  /** The error of a refusal. */
  refusal(problem: Problem, leaseId: string): RingfenceError {
    if (isDenial(problem)) {
      return this.maybeDone ? new UnknownError(problem.detail, leaseId) : new UnauthorizedError(problem);
    }
    const reason = lossOf(problem);
    return reason === undefined ? new RejectedError(problem) : new LostError(reason);
  }

  /** The error if a 429 asks for more time than there is. */
  limit(problem: Problem, retryAfterMs: number, leaseId: string): RingfenceError {
    return this.maybeDone ? new UnknownError(problem.detail, leaseId) : new RejectedError(problem, retryAfterMs);
  }

  /** The error of a call without a definite outcome. */
  failure(leaseId: string): RingfenceError {
    return this.maybeDone ? new UnknownError(this.lastFailure, leaseId) : new UnavailableError(this.lastFailure);
  }
}

/** The cluster, as a client and its leases share it. */
export class Cluster {
  readonly nodes: Nodes;
  readonly clock: Clock;
  /** Stops what goes on in the background. */
  readonly stop = new Stop();
  /** What goes on in the background, and for which lease. */
  readonly #background = new Map<Promise<void>, Named>();
  /** Those of which the last call failed while the client was being closed. */
  #failed: Map<string, Named> | undefined;

  constructor(nodes: Nodes, clock: Clock) {
    this.nodes = nodes;
    this.clock = clock;
  }

  /** Renews a lease by its id. */
  async renew(leaseId: string, ttlMs?: number, stop?: Stop, isHeld = true): Promise<Confirmation> {
    const body = ttlMs === undefined ? {} : { ttl_ms: ttlMs };
    const operation = { renew: { lease_id: leaseId, ...body } };
    const request: Request = { method: "POST", path: `/v1/leases/${leaseId}/renew`, body, operation };
    const read = (json: unknown) => readGrant(json, leaseId);
    const { value, response } = await new Attempts(this.nodes, stop).call(request, leaseId, RETRY_MS, read, isHeld);
    return { grant: value, sent: response.sent };
  }

  /** Who has a key. */
  async view(key: string, stop?: Stop): Promise<KeyView> {
    const path = `/v1/keys/${encodeURIComponent(key).replaceAll("%2F", "/")}`;
    const attempts = new Attempts(this.nodes, stop);
    attempts.onlyReads = true;
    const { value } = await attempts.call({ method: "GET", path }, "", RETRY_MS, (json) => readKey(json, key), false);
    return value;
  }

  /** Releases a lease, or leaves the queue. It also succeeds if there is no such lease. Only the end of the client stops it. */
  async release(leaseId: string, withinMs = RETRY_MS): Promise<void> {
    const operation = { release: { lease_id: leaseId } };
    const request: Request = { method: "DELETE", path: `/v1/leases/${leaseId}`, operation };
    const read = (_: unknown, status: number) => {
      if (status !== 204) {
        throw new TypeError("expected 204");
      }
    };
    await new Attempts(this.nodes, this.stop).call(request, leaseId, withinMs, read);
  }

  /** Releases a lease, best effort, with nobody to tell. Keeps the process alive meanwhile. */
  releaseInBackground(leaseId: string, keys: readonly string[]): void {
    this.background(this.release(leaseId, RELEASE_MS), { leaseId, keys });
  }

  /** Work that gives back a lease, and that the client waits for when it is closed. Its failure is of no other consequence. */
  background(work: Promise<void>, lease: Named): void {
    const ended = (hasFailed: boolean) => {
      this.#background.delete(done);
      if (hasFailed) {
        this.#failed?.set(lease.leaseId, lease);
      } else {
        this.#failed?.delete(lease.leaseId);
      }
    };
    const done: Promise<void> = work.then(
      () => ended(false),
      (error) => ended(!(error instanceof LostError)),
    );
    this.#background.set(done, lease);
  }

  /** Waits until nothing is left in the background, or until `end`. Returns the leases that are not given back, as far as is known. */
  async settled(end: Promise<void>): Promise<Named[]> {
    let isOver = false;
    void end.then(() => {
      isOver = true;
    });
    this.#failed = new Map();
    while (this.#background.size > 0 && !isOver) {
      await Promise.race([Promise.all(this.#background.keys()), end]);
    }
    const left = new Map(this.#failed);
    for (const lease of this.#background.values()) {
      left.set(lease.leaseId, lease);
    }
    return [...left.values()];
  }
}

/** The loss that a refusal reports, if it reports one. */
export function lossOf(problem: Problem): LossReason | undefined {
  switch (problem.name) {
    case "unknown-lease":
      return "forgotten";
    case "lease-gone":
      switch (problem.reason) {
        case "released":
        case "expired":
        case "revoked":
        case "abandoned":
          return problem.reason;
        default:
          return "forgotten";
      }
    default:
      return undefined;
  }
}
