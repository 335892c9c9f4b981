package dev.ringfence;

/**
 * It may or may not have been done: no repeat had a definite response for as long as the client retries. After an acquire or a
 * release, the lease is being released in the background. If that fails, too, it ends with its ttl.
 */
public final class UnknownException extends RingfenceException {
  private static final long serialVersionUID = 1;
  // Errors get into logs and other processes, and the id is a secret.
  private final transient String leaseId;

  UnknownException(String why, String leaseId) {
    super("the outcome is unknown: " + why);
    this.leaseId = leaseId;
  }

  /**
   * The lease that it is about.
   *
   * @return its id; {@code null} if it is about no single lease
   */
  public String leaseId() {
    return leaseId;
  }
}
