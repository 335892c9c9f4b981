/** The state of a lease, which its handle and the keeper share. */
import { setMaxListeners } from "node:events";
import type { Link } from "./bag.js";
import { type Clock, type Moment, now } from "./clock.js";
import { type LossReason, LostError } from "./errors.js";
import type { LeaseView, Tell } from "./hooks.js";
import type { Kept } from "./keeper.js";
import type { Confirmation, Lifetime, State } from "./lifetime.js";
import type { Grant } from "./wire.js";

export class Held {
  /** Its place with the keeper, as long as it has one. */
  kept: Link<Kept> | undefined;
  readonly lifetime: Lifetime;
  /** Resolves once it is lost. It never rejects. */
  readonly lost: Promise<LossReason>;
  readonly #clock: Clock;
  /** Made once somebody asks for the signal: most leases are released before. */
  #ended: AbortController | undefined;
  /** The same once it has aborted: whoever listens to it may have the handle, which is to be collected then. */
  #aborted: WeakRef<AbortSignal> | undefined;
  #isTold = false;
  #grant: Grant;
  #tell: (reason: LossReason) => void = () => {};
  readonly #hook: Tell | undefined;

  constructor(grant: Grant, lifetime: Lifetime, clock: Clock, hook?: Tell) {
    this.#hook = hook;
    this.#grant = grant;
    this.lifetime = lifetime;
    this.#clock = clock;
    this.lost = new Promise((resolve) => {
      this.#tell = resolve;
    });
  }

  get leaseId(): string {
    return this.#grant.leaseId;
  }

  get token(): number {
    return this.#grant.token;
  }

  /** Its keys, in the order of the request. */
  get keys(): readonly string[] {
    return this.#grant.keys.map(({ key }) => key);
  }

  /** The same lease, to be kept after its holder has released it. */
  successor(): Held {
    return new Held(this.#grant, this.lifetime.successor(), this.#clock);
  }

  /** A renewal was in vain. */
  failed(why: string): void {
    this.#hook?.("failed", this.#view, why);
  }

  get #view(): LeaseView {
    return { keys: this.keys, token: this.token };
  }

  /** As last confirmed. */
  get grant(): Grant {
    return this.#grant;
  }

  /** Aborts once it is lost. */
  get signal(): AbortSignal {
    const loss = this.look();
    const aborted = this.#aborted?.deref();
    if (aborted !== undefined) {
      return aborted;
    }
    if (this.#ended !== undefined) {
      return this.#ended.signal;
    }
    const ended = new AbortController();
    // However much work listens.
    setMaxListeners(0, ended.signal);
    if (loss === undefined) {
      this.#ended = ended;
    } else {
      ended.abort(new LostError(loss));
      this.#aborted = new WeakRef(ended.signal);
    }
    return ended.signal;
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
    if (loss !== undefined && !this.#isTold) {
      this.#isTold = true;
      this.#ended?.abort(new LostError(loss));
      this.#aborted = this.#ended === undefined ? undefined : new WeakRef(this.#ended.signal);
      this.#ended = undefined;
      this.#tell(loss);
      if (loss === "released") {
        this.#hook?.("released", this.#view);
      } else {
        this.#hook?.("lost", this.#view, loss);
      }
    }
    return loss;
  }

  confirm(confirmation: Confirmation, at: Moment = now(this.#clock)): void {
    if (this.lifetime.confirm(confirmation, at)) {
      this.#grant = confirmation.grant;
      this.#hook?.("renewed", this.#view);
    }
    this.look(at);
  }

  lose(reason: LossReason, at: Moment = now(this.#clock)): void {
    this.lifetime.lose(reason, at);
    this.look(at);
  }
}
