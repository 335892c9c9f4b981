/** Waits and limits. */
import { Stop } from "./stop.js";

/** A timer that fires this late shows that the event loop was blocked, and that answers may have arrived meanwhile. */
const LATE_MS = 50;
/** The longest interval of a timer. */
export const LONGEST_MS = 2 ** 31 - 1;

/** Waits, unless it is stopped: then it throws the reason. It keeps the process alive meanwhile, if asked to. */
export function sleep(ms: number, stop?: Stop, keepsAlive = true): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      ignore?.();
      resolve();
    }, ms);
    if (!keepsAlive) {
      timer.unref();
    }
    const ignore = stop?.listen((reason) => {
      clearTimeout(timer);
      reject(reason);
    });
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

/** The result of `promise`, or the reason as soon as it is stopped; the promise goes on then, and no one hears its error. */
export function orStop<T>(promise: Promise<T>, stop: Stop | undefined): Promise<T> {
  if (stop === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const ignore = stop.listen(reject);
    promise.then(resolve, reject).finally(ignore);
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

/** The result of `work`, or the error once this time is over: then its `Stop` stops, and what it does goes on unheard. */
export async function timed<T>(
  timeoutMs: number | undefined,
  timedOut: (timeoutMs: number) => Error,
  work: (stop: Stop | undefined) => Promise<T>,
): Promise<T> {
  if (timeoutMs === undefined) {
    return await work(undefined);
  }
  const stop = new Stop();
  const timer = setTimeout(() => stop.stop(timedOut(timeoutMs)), Math.min(timeoutMs, LONGEST_MS));
  try {
    return await orStop(work(stop), stop);
  } finally {
    clearTimeout(timer);
  }
}
