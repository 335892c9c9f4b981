/** Waits and limits. */

/** A timer that fires this late shows that the event loop was blocked, and that answers may have arrived meanwhile. */
const LATE_MS = 50;

/** Waits, unless `signal` aborts: then it throws the signal's reason. It keeps the process alive meanwhile, if asked to. */
export function sleep(ms: number, signal?: AbortSignal, keepsAlive = true): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (!keepsAlive) {
      timer.unref();
    }
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/**
 * Calls `expired` after this time, unless the returned function is called before. Timers come before answers in the event loop: after
 * it was blocked, answers that are there get a moment to be read.
 */
export function limit(ms: number, expired: () => void): () => void {
  const due = performance.now() + ms;
  let timer = setTimeout(() => {
    if (performance.now() - due > LATE_MS) {
      timer = setTimeout(expired, LATE_MS);
    } else {
      expired();
    }
  }, ms);
  return () => clearTimeout(timer);
}

/** The result of `promise`, or the reason of `signal` as soon as that aborts; the promise goes on then, and no one hears its error. */
export function orAbort<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) {
      abort();
    }
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** Random pauses from half to all of a time that doubles up to a second, so that clients that failed together return apart. */
export class Backoff {
  #pauses = 0;

  next(): number {
    const most = Math.min(40 * 2 ** Math.min(this.#pauses, 8), 1_000);
    this.#pauses += 1;
    return most * (0.5 + Math.random() / 2);
  }

  reset(): void {
    this.#pauses = 0;
  }
}
