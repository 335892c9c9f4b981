package dev.ringfence;

import java.util.List;

/** A key was not free, and the acquire did not wait. */
public final class HeldException extends RingfenceException {
  private static final long serialVersionUID = 1;
  private final transient List<Blocker> holders;
  private final int waiters;

  HeldException(List<Blocker> holders, int waiters) {
    super(holders.isEmpty() ? waiters + " earlier waiters come first" : holders.get(0).told());
    this.holders = List.copyOf(holders);
    this.waiters = waiters;
  }

  /**
   * Some of the leases in the way.
   *
   * @return none, if only earlier waiters are in the way, or if you may not read the keys
   */
  public List<Blocker> holders() {
    return holders == null ? List.of() : holders;
  }

  /**
   * How many wait.
   *
   * @return the number of waiters in the longest of the queues
   */
  public int waiters() {
    return waiters;
  }
}
