/**
 * The attempts of a call, at one node after another, until an [outcome](./outcome.ts) is definite.
 *
 * **Doubt is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about it, nor does a denial; only
 * *done* or *refused* resolves it. A call makes no more attempts after 5 s without a definite outcome, not counting waits for a turn: the cluster
 * may forget an id 60 s after its end. A release in the background goes on for 30 s, an acquire that stood in the queue until its wait is over.
 */
import { isBatched } from "./batch.js";
import {
  LostError,
  RejectedError,
  type RingfenceError,
  UnauthorizedError,
  UnavailableError,
  UnknownError,
} from "./errors.js";
import type { Node, Nodes } from "./nodes.js";
import { isDenial, lossOf, type Outcome, outcomeOf, outcomeWithout } from "./outcome.js";
import { Distrust, Failure, type Request, type Response, Unasked } from "./server.js";
import { Stop } from "./stop.js";
import { Backoff, orStop, sleep } from "./timers.js";
import type { Turn } from "./turns.js";
import type { Problem } from "./wire.js";

/** How long a call is repeated without a definite outcome. */
export const RETRY_MS = 5_000;
/** How long one node may take if another can be asked. An election takes about a second, but a node gives up only after 5 s. */
export const ATTEMPT_MS = 2_000;
/** How long a request takes that those who wait for their turn are not to wait for again. */
const SLOW_MS = 500;
/** How many waits of one call may stay open at nodes that do not answer. */
const MOST_LEFT = 3;

type Read<T> = (json: unknown, status: number) => T;
type Done<T> = Extract<Outcome<T>, { is: "done" }>;

/**
 * The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows. Until then attempts may
 * share requests with others; later they are alone, since something in between may not let a batch pass. Only so many are alone at once; what one
 * of them that gets no answer came to is what all that wait for their turn came to, so that an outage takes no longer for many calls than for one.
 *
 * The cluster takes a place away 2 s after the connection of its wait was closed. So a wait at a node that does not answer stays open until
 * another has answered.
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
  /** What ends each of the waits that were left open. */
  readonly #left: Stop[] = [];
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
    let turn: Turn | undefined;
    try {
      turn = this.#isAlone(request) ? await this.#turn() : undefined;
    } catch (error) {
      return this.#failedBefore(error);
    }
    const node = this.#nodes.best;
    const asked = performance.now();
    let outcome: Outcome<T>;
    let response: Response | undefined;
    let failure: Failure | undefined;
    try {
      response = await this.#send(node, request, timeMs, turn);
      outcome = outcomeOf(response, read);
    } catch (error) {
      if (!(error instanceof Failure)) {
        throw error;
      }
      failure = error;
      outcome = outcomeWithout(error);
    } finally {
      turn?.end();
    }
    this.#note(node, failure);
    const isDefinite = outcome.is === "done" || outcome.is === "refused" || outcome.is === "limited";
    const stranger = this.#nodes.checkCluster(node, response?.cluster, isDefinite);
    if (stranger !== undefined) {
      outcome = outcomeWithout(stranger);
    }
    this.#record(node, outcome, response, failure instanceof Unasked ? undefined : asked);
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

  /** `asked`: when the node was, if it was. */
  #record(node: Node, outcome: Outcome<unknown>, response: Response | undefined, asked: number | undefined): void {
    switch (outcome.is) {
      case "limited":
        this.lastFailure = outcome.problem.detail;
        this.#nodes.responded(node, response?.leader);
        break;
      case "done":
      case "refused":
        this.#endLeft(0);
        this.#failed = 0;
        this.#backoff.reset();
        this.#nodes.responded(node, response?.leader);
        break;
      case "not-done":
      case "ambiguous":
        this.#failed += 1;
        this.maybeDone ||= outcome.is === "ambiguous" && !this.onlyReads;
        this.lastFailure = outcome.why;
        if (asked !== undefined) {
          this.#nodes.failed(node, response === undefined ? asked : undefined);
        }
    }
  }

  /** Sends it, unless the node turns out to be silent while another may answer. */
  async #send(node: Node, request: Request, timeMs: number, turn: Turn | undefined): Promise<Response> {
    if (!node.isMet) {
      await orStop(this.#nodes.meet(node), this.#stop);
    }
    this.#stop?.throwIfStopped();
    const hasAnother = () => this.#nodes.hasUsableBesides(node);
    if (!isBatched(request) || turn !== undefined) {
      return await this.#sendAlone(node, request, timeMs, hasAnother);
    }
    const response = await node.server.batcher.send(request, timeMs, this.#stop, hasAnother);
    if (response !== undefined) {
      return response;
    }
    const own = await this.#turn();
    try {
      return await this.#sendAlone(node, request, timeMs, hasAnother);
    } finally {
      own.end();
    }
  }

  #isAlone({ operation, isApart }: Request): boolean {
    return isApart === undefined && (operation === undefined || this.#failed >= this.#nodes.count);
  }

  /** Waits until it may send something alone. Fails as the others do, or with the reason of its `Stop`. */
  async #turn(): Promise<Turn> {
    const turn = this.#nodes.alone.ask();
    const asked = performance.now();
    if (!turn.isReady) {
      try {
        await orStop(new Promise<void>((resolve, reject) => turn.whenReady(resolve, reject)), this.#stop);
      } catch (error) {
        turn.end();
        throw error;
      }
      this.idleMs += performance.now() - asked;
    }
    return turn;
  }

  /** The outcome of what was not sent, since others got no answer. */
  #failedBefore<T>(error: unknown): Outcome<T> {
    if (!(error instanceof Failure)) {
      throw error;
    }
    this.#failed += 1;
    this.lastFailure = error.message;
    return { is: "not-done", why: error.message };
  }

  async #sendAlone(node: Node, request: Request, timeMs: number, hasAnother: () => boolean): Promise<Response> {
    const broken = new Stop();
    const left = new Stop();
    const ignore = this.#stop?.listen((reason) => broken.stop(reason));
    const { pulse } = node.server;
    let isLooking = false;
    const unwatch = pulse.watch(async () => {
      if (!hasAnother()) {
        return;
      }
      const silent = new Failure(true, `${node.server}: it does not answer`);
      if (request.isApart !== "wait") {
        broken.stop(silent);
      } else if (!isLooking) {
        isLooking = true;
        if ((await pulse.staysSilent()) && hasAnother()) {
          left.stop(silent);
        }
        isLooking = false;
      }
    });
    const begun = performance.now();
    const sending = node.server.send(request, timeMs, broken);
    try {
      return await orStop(sending, left);
    } catch (error) {
      // What is over at once does not hold up those who wait.
      if (error instanceof Failure && request.isApart === undefined && performance.now() - begun >= SLOW_MS) {
        this.#nodes.alone.fail(new Unasked(error.message));
      }
      throw error;
    } finally {
      unwatch(broken.isStopped && !(broken.reason instanceof Failure));
      if (left.isStopped) {
        this.#leave(sending, broken);
      }
      ignore?.();
    }
  }

  /** Leaves a wait open, if there is a connection to spare. */
  #leave(sending: Promise<Response>, broken: Stop): void {
    const turn = this.#nodes.waits.ask();
    const end = () => turn.end();
    sending.then(end, end);
    if (turn.isReady) {
      this.#left.push(broken);
    } else {
      broken.stop(new Failure(true, "another waits for its connection"));
    }
    this.#endLeft(MOST_LEFT);
  }

  /** Ends waits that were left open, but the last of them. */
  #endLeft(but: number): void {
    for (const broken of this.#left.splice(0, Math.max(this.#left.length - but, 0))) {
      broken.stop(new Failure(true, "another node has answered"));
    }
  }

  /** There is no further attempt. */
  end(): void {
    this.#endLeft(0);
  }

  /**
   * Attempts until the outcome is definite, or `retryMs` is over. Throws a `RingfenceError`, or the reason of its `Stop`. What is about a lease that
   * is held here goes on where no attempt can help: certificates may be replaced while it is.
   */
  async call<T>(request: Request, leaseId: string, retryMs: number, read: Read<T>, isHeld = true): Promise<Done<T>> {
    const lookup = this.#nodes.resolve();
    if (lookup !== undefined) {
      // The time of the lookup does not count for the attempts.
      await orStop(lookup, this.#stop);
    }
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
