package dev.ringfence;

/** No node was reachable, or none found a leader, for as long as the client retries. Nothing was done. */
public final class UnavailableException extends RingfenceException {
  private static final long serialVersionUID = 1;

  UnavailableException(String why) {
    super("the cluster is not available: " + why);
  }
}
