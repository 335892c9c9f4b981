package dev.ringfence;

import java.util.concurrent.ThreadLocalRandom;

/** Random pauses that grow up to a second. They start low, because most elections take less. */
final class Backoff {
  private int pauses;

  /** From half to all of a time that doubles, so that clients that failed together return apart. */
  long next() {
    long most = Math.min(40 * Checks.MS << Math.min(pauses, 8), 1_000 * Checks.MS);
    pauses++;
    return most / 2 + ThreadLocalRandom.current().nextLong(most / 2);
  }
}
