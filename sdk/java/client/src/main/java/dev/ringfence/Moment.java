package dev.ringfence;

/**
 * An instant on both clocks, in nanoseconds. Two instants have no order: the clocks may disagree.
 *
 * @param monotonic precise, and may stand still while the machine sleeps
 * @param uptime runs while the machine sleeps, in steps of 10 ms
 */
record Moment(long monotonic, long uptime) {
  /** Whether {@code other} has come, by either clock. */
  boolean hasReached(Moment other) {
    return monotonic >= other.monotonic || uptime >= other.uptime;
  }

  /** How much later this is than {@code earlier}, by the clock on which it is less; 0 if that is later. */
  long since(Moment earlier) {
    return Math.max(0, Math.min(monotonic - earlier.monotonic, uptime - earlier.uptime));
  }

  /** The instant so much later; earlier if that is negative. */
  Moment plus(long nanos) {
    return new Moment(monotonic + nanos, uptime + nanos);
  }

  /** The earlier one, by each clock. */
  Moment min(Moment other) {
    return new Moment(Math.min(monotonic, other.monotonic), Math.min(uptime, other.uptime));
  }

  /** The later one, by each clock. */
  Moment max(Moment other) {
    return new Moment(Math.max(monotonic, other.monotonic), Math.max(uptime, other.uptime));
  }
}
