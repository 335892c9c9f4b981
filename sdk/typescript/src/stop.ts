/**
 * What cancels calls.
 *
 * Inside the client it is a `Stop`: any number of calls may listen to one, and it costs a fraction of an `AbortController`. A signal of the user
 * gets one listener, however many calls it is given to, since Node warns of more than ten.
 */

export class Stop {
  #listeners: Set<(reason: unknown) => void> | undefined;
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
    const listeners = this.#listeners;
    this.#listeners = undefined;
    for (const listener of listeners ?? []) {
      listener(reason);
    }
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
    this.#listeners ??= new Set();
    this.#listeners.add(listener);
    return () => this.#listeners?.delete(listener);
  }
}

/** What stops with each signal of a user that is in use. */
const FOLLOWERS = new WeakMap<AbortSignal, Followers>();

interface Followers {
  readonly all: Set<(reason: unknown) => void>;
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
  const followers = FOLLOWERS.get(signal) ?? begin(signal);
  // A listener may be given twice.
  const own = (reason: unknown) => listener(reason);
  followers.all.add(own);
  return () => {
    followers.all.delete(own);
    if (followers.all.size === 0 && FOLLOWERS.get(signal) === followers) {
      FOLLOWERS.delete(signal);
      signal.removeEventListener("abort", followers.tell);
    }
  };
}

function begin(signal: AbortSignal): Followers {
  const all = new Set<(reason: unknown) => void>();
  const tell = () => {
    FOLLOWERS.delete(signal);
    for (const listener of all) {
      listener(signal.reason);
    }
  };
  signal.addEventListener("abort", tell, { once: true });
  const followers = { all, tell };
  FOLLOWERS.set(signal, followers);
  return followers;
}
