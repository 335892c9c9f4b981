package dev.ringfence;

/** What is known of a node. {@link Nodes} alone changes it. */
final class Node {
  private static final long AVOIDED_FOR = 3_000 * Checks.MS;
  private static final int DOUBLINGS = 5;

  final Url url;
  /** Whether it has answered for this client's cluster. */
  volatile boolean isMet;
  /** Whether its last outcome was definite. */
  volatile boolean isProven;
  /** When it failed; -1 if it has not. */
  long failedAt = -1;
  /** How many times in a row it did not answer. */
  int silences;

  Node(Url url, boolean isMet) {
    this.url = url;
    this.isMet = isMet;
  }

  /** Whether it has not failed for a while. */
  boolean isHealthy(long now) {
    int doublings = Math.min(Math.max(silences - 1, 0), DOUBLINGS);
    return failedAt < 0 || now - failedAt > AVOIDED_FOR << doublings;
  }
}
