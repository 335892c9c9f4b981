/**
 * The clock that leases are measured on.
 *
 * It has to count the time that the machine sleeps, which `performance.now()` does not do on Linux; `os.uptime()` does, in steps
 * of 10 ms. So each reading is of both, and the larger advance counts. Node reads no clock that a time service cannot slew: while
 * one slows the machine's clocks down, a lease is counted too long by as much. Only the token helps then.
 */
import { uptime } from "node:os";
import { performance } from "node:perf_hooks";

/** Two clocks, both in milliseconds. For tests, which make them jump. */
export interface Clock {
  /** Never goes back, and may stand still while the machine sleeps. */
  monotonic(): number;
  /** Runs while the machine sleeps. */
  uptime(): number;
  /** Calls this function after each jump: what is due by then is not to wait for a timer. */
  onJump?(look: () => void): void;
}

/** An instant, on both clocks. */
export interface Moment {
  readonly monotonic: number;
  readonly uptime: number;
}

/** Where uptime counts whole seconds, a smaller lead says nothing. */
const COARSE_MS = process.platform === "linux" ? 0 : 1_000;

/** For how long a reading of the uptime is good: far less than one of its steps. */
const GOOD_MS = 1;

/**
 * The uptime. To read it costs as much as the rest of a call, so it is read again only after a millisecond, by the monotonic clock or by the wall
 * clock, which also counts the time that the machine sleeps.
 */
export function sparingly(read: () => number, monotonic: () => number, wall: () => number): () => number {
  let [readAt, wallAt] = [Number.NEGATIVE_INFINITY, 0];
  let last = 0;
  return () => {
    const [at, wallNow] = [monotonic(), wall()];
    if (at - readAt >= GOOD_MS || Math.abs(wallNow - wallAt) > GOOD_MS) {
      [readAt, wallAt] = [at, wallNow];
      last = read();
    }
    return last;
  };
}

function readUptime(): number {
  try {
    return uptime() * 1_000;
  } catch {
    // A sandbox hides the uptime.
    return 0;
  }
}

/** The clocks of this machine. */
export const systemClock: Clock = {
  monotonic: () => performance.now(),
  uptime: sparingly(
    readUptime,
    () => performance.now(),
    () => Date.now(),
  ),
};

export function now(clock: Clock): Moment {
  // In this order, a pause between the two makes the reading newer, never older.
  const up = clock.uptime();
  return { monotonic: clock.monotonic(), uptime: up };
}

/** The milliseconds from `earlier` to `later`: never too few, if one of the two clocks is right. */
export function elapsed(earlier: Moment, later: Moment): number {
  const monotonic = later.monotonic - earlier.monotonic;
  const up = later.uptime - earlier.uptime;
  return Math.max(0, up - monotonic > COARSE_MS ? up : monotonic);
}
