/**
 * Whether a server still answers, while requests wait for it.
 *
 * A host that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a request that
 * waits, be it for 30 s in the cluster's queue, has the server asked for a sign of life on another connection:
 *
 *     sent -- 300 ms without a response --> probe -- answered --> 1 s --> probe -- ...
 *                                             '-- not within 1.5 s --> the requests are broken, and repeated elsewhere
 *
 * Callers without more time give requests up sooner. Until the server answers anything, these requests together count as one that has waited since
 * the first of them. If the probe fails when none waits any more, the server is silent only if it has answered nothing meanwhile, nor a second probe.
 *
 * Only the answer to a probe says that all threads of the server run: a response to another request says nothing of the thread that
 * has this one. All requests that wait for a server share its probes.
 *
 * A busy server may be late for a moment, with thousands of waiters. If all of them asked elsewhere at once, that would make it later still. So
 * those who can wait pause for a random time, and look once more.
 */
import { Bag } from "./bag.js";
import { limit, sleep } from "./timers.js";

/** How long a request waits before the server is asked. Most responses take less. */
const PROBE_AFTER_MS = 300;
/** How long after a sign of life it is asked for another. */
const PROBE_INTERVAL_MS = 1_000;
/** The longest pause before another look at a server that was silent, and how long that look may take. */
const LOOK_AFTER_MS = 500;
const LOOK_WITHIN_MS = 300;

/** A request that waits. */
interface Waits {
  readonly begun: number;
  readonly silent: () => void;
}

export class Pulse {
  readonly #probe: () => Promise<unknown>;
  readonly #waits = new Bag<Waits>();
  /** When the first of the given-up requests began. Reset when a request ends otherwise. */
  #givenUp = Number.POSITIVE_INFINITY;
  /** When a probe was answered last. */
  #lived = Number.NEGATIVE_INFINITY;
  #asked = Number.NEGATIVE_INFINITY;
  #isProbing = false;
  /** The look of all that look once more. */
  #another: Promise<boolean> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #timerDue = Number.POSITIVE_INFINITY;

  /** Called with the time since which the server is silent, if this is found when no request that could be told waits any more. */
  onSilent: (since: number) => void = () => {};

  /** `probe` rejects within a bound if the server does not answer that it works. */
  constructor(probe: () => Promise<unknown>) {
    this.#probe = probe;
  }

  /** Calls `silent` each time the server is found silent. To end this, call the returned function, and say whether the request was given up. */
  watch(silent: () => void): (isGivenUp: boolean) => void {
    const waits = { begun: performance.now(), silent };
    const link = this.#waits.add(waits);
    this.#lookAt(this.#dueAt(waits.begun));
    return (isGivenUp) => {
      link.remove();
      if (!isGivenUp) {
        this.#givenUp = Number.POSITIVE_INFINITY;
      } else if (this.#lived < waits.begun) {
        this.#givenUp = Math.min(this.#givenUp, waits.begun);
      }
      if (this.#waits.size === 0 && this.#givenUp === Number.POSITIVE_INFINITY) {
        this.#stopTimer();
      }
    };
  }

  /** Ends the probes. */
  end(): void {
    this.#stopTimer();
    this.#asked = Number.POSITIVE_INFINITY;
  }

  /** Whether a server that was just found silent still is, after a pause in which many others decide the same. */
  async staysSilent(): Promise<boolean> {
    const since = performance.now();
    await sleep(LOOK_AFTER_MS * Math.random(), undefined, false);
    if (this.#lived > since) {
      return false;
    }
    this.#another ??= this.#answers().finally(() => {
      this.#another = undefined;
    });
    const another = this.#another;
    return await new Promise((resolve) => {
      const clear = limit(LOOK_WITHIN_MS, () => resolve(true));
      void another.then((answers) => {
        clear();
        resolve(!answers);
      });
    });
  }

  async #answers(): Promise<boolean> {
    try {
      await this.#probe();
      this.#lived = performance.now();
      this.#givenUp = Number.POSITIVE_INFINITY;
      return true;
    } catch {
      return false;
    }
  }

  #dueAt(begun: number): number {
    const due = this.#lived > begun ? this.#lived + PROBE_INTERVAL_MS : begun + PROBE_AFTER_MS;
    return Math.max(due, this.#asked + PROBE_INTERVAL_MS);
  }

  #lookAt(due: number): void {
    if (this.#isProbing || due >= this.#timerDue) {
      return;
    }
    this.#stopTimer();
    this.#timerDue = due;
    this.#timer = setTimeout(() => this.#look(), Math.max(due - performance.now(), 0) + 1);
    // The request that waits keeps the process alive.
    this.#timer.unref();
  }

  #stopTimer(): void {
    clearTimeout(this.#timer);
    this.#timerDue = Number.POSITIVE_INFINITY;
  }

  #look(): void {
    this.#stopTimer();
    let due = this.#dueAt(this.#givenUp);
    for (const { begun } of this.#waits.values()) {
      due = Math.min(due, this.#dueAt(begun));
    }
    if (due <= performance.now()) {
      void this.#ask();
    } else if (due < Number.POSITIVE_INFINITY) {
      this.#lookAt(due);
    }
  }

  async #ask(): Promise<void> {
    const asked = performance.now();
    this.#asked = asked;
    this.#isProbing = true;
    if (!(await this.#answers()) && !this.#silence(asked)) {
      await this.#judge(asked);
    }
    this.#isProbing = false;
    this.#look();
  }

  /** Nobody waits any more who could look once more at a server that was silent since `asked`. */
  async #judge(asked: number): Promise<void> {
    const isUnanswered = () => this.#givenUp <= asked;
    if (isUnanswered() && (await this.staysSilent()) && isUnanswered()) {
      this.#givenUp = Number.POSITIVE_INFINITY;
      this.onSilent(asked);
    }
  }

  /** Tells all requests that have waited since `asked`. Returns whether there are any. */
  #silence(asked: number): boolean {
    const waited = this.#waits.values().filter(({ begun }) => begun <= asked);
    for (const { silent } of waited) {
      silent();
    }
    return waited.length > 0;
  }
}
