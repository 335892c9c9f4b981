/** The state of a lease, which its handle and the keeper share. */
import { setMaxListeners } from "node:events";
import { type Clock, type Moment, now } from "./clock.js";
import { type LossReason, LostError } from "./errors.js";
import type { Confirmation, Lifetime, State } from "./lifetime.js";
import type { Grant } from "./wire.js";

export class Held {
  readonly lifetime: Lifetime;
  /** Resolves once it is lost. It never rejects. */
  readonly lost: Promise<LossReason>;
  readonly #clock: Clock;
  readonly #ended = new AbortController();
  #grant: Grant;
  #tell: (reason: LossReason) => void = () => {};

  constructor(confirmation: Confirmation, lifetime: Lifetime, clock: Clock) {
    this.#grant = confirmation.grant;
    this.lifetime = lifetime;
    this.#clock = clock;
    // However much work listens.
    setMaxListeners(0, this.#ended.signal);
    this.lost = new Promise((resolve) => {
      this.#tell = resolve;
    });
  }

  get leaseId(): string {
    return this.#grant.leaseId;
  }

  /** As last confirmed. */
  get grant(): Grant {
    return this.#grant;
  }

  /** Aborts once it is lost. */
  get signal(): AbortSignal {
    this.look(now(this.#clock));
    return this.#ended.signal;
  }

  get state(): State {
    const at = now(this.#clock);
    this.look(at);
    return this.lifetime.state(at);
  }

  get remainingMs(): number {
    return this.lifetime.remainingMs(now(this.#clock));
  }

  /** Why it is lost, by the clock, if it is. Whoever has to know of that is told. */
  look(at: Moment = now(this.#clock)): LossReason | undefined {
    const loss = this.lifetime.loss(at);
    if (loss !== undefined && !this.#ended.signal.aborted) {
      this.#tell(loss);
      this.#ended.abort(new LostError(loss));
    }
    return loss;
  }

  confirm(confirmation: Confirmation, at: Moment = now(this.#clock)): void {
    if (this.lifetime.confirm(confirmation, at)) {
      this.#grant = confirmation.grant;
    }
    this.look(at);
  }

  lose(reason: LossReason, at: Moment = now(this.#clock)): void {
    this.lifetime.lose(reason, at);
    this.look(at);
  }
}
