/**
 * What cancels calls.
 *
 * Inside the client it is a `Stop`: any number of calls may listen to one, and it costs a fraction of an `AbortController`. A signal of the user
 * gets one listener, however many calls it is given to, since Node warns of more than ten.
 */
import { Bag } from "./bag.js";

export class Stop {
  #listeners: Bag<(reason: unknown) => void> | undefined;
  #reason: unknown;
  #isStopped = false;

  get isStopped(): boolean {
    return this.#isStopped;
  }

  get reason(): unknown {
    return this.#reason;
  }

  /** Tells all that listen. Only the first reason counts. */
  stop(reason: unknown): void {
    if (this.#isStopped) {
      return;
    }
    this.#isStopped = true;
    this.#reason = reason;
    // A listener may remove another one.
    for (let next = this.#listeners?.first; next !== undefined; next = this.#listeners?.first) {
      next.remove();
      next.value(reason);
    }
  }

  /** The number of listeners. */
  get listening(): number {
    return this.#listeners?.size ?? 0;
  }

  throwIfStopped(): void {
    if (this.#isStopped) {
      throw this.#reason;
    }
  }

  /** Calls `listener`, which throws nothing, once it is stopped, unless the returned function is called before. At once if it is. */
  listen(listener: (reason: unknown) => void): () => void {
    if (this.#isStopped) {
      listener(this.#reason);
      return () => {};
    }
    this.#listeners ??= new Bag();
    const link = this.#listeners.add(listener);
    return () => link.remove();
  }
}

/** What stops with each signal of a user that is in use. */
const FOLLOWERS = new WeakMap<AbortSignal, Follower>();

interface Follower {
  readonly stop: Stop;
  readonly tell: () => void;
}

/** As `Stop.listen`, for a signal of the user. */
export function follow(signal: AbortSignal | undefined, listener: (reason: unknown) => void): () => void {
  if (signal === undefined) {
    return () => {};
  }
  if (signal.aborted) {
    listener(signal.reason);
    return () => {};
  }
  const follower = FOLLOWERS.get(signal) ?? begin(signal);
  const { stop, tell } = follower;
  const ignore = stop.listen(listener);
  return () => {
    ignore();
    if (stop.listening === 0 && FOLLOWERS.get(signal) === follower) {
      FOLLOWERS.delete(signal);
      signal.removeEventListener("abort", tell);
    }
  };
}

function begin(signal: AbortSignal): Follower {
  const stop = new Stop();
  const tell = () => {
    FOLLOWERS.delete(signal);
    stop.stop(signal.reason);
  };
  signal.addEventListener("abort", tell, { once: true });
  const follower = { stop, tell };
  FOLLOWERS.set(signal, follower);
  return follower;
}
