package dev.ringfence;

/**
 * A grant, and when the request that it answers was sent.
 *
 * @param sent when it was sent
 * @param grant the grant
 */
record Confirmation(Moment sent, Grant grant) {
  private static final long DRIFT = 500;
  private static final long LATE = 5 * Checks.MS;

  /** Until when the lease certainly lives. The allowance (0.2 % and 5 ms) is for clocks that differ and timers that are late. */
  Moment until() {
    long nanos = grant.expiresInMs() * Checks.MS;
    return sent.plus(Math.max(0, nanos - nanos / DRIFT - LATE));
  }

  /** Whether a holder may begin: at least half of the ttl is left. */
  boolean isFresh(Moment now) {
    return until().since(now) >= grant.ttlMs() * Checks.MS / 2;
  }
}
