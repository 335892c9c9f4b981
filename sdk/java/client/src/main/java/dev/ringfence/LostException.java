package dev.ringfence;

/** The lease has ended, or may have: what was done under it may have met another holder. */
public final class LostException extends RingfenceException {
  private static final long serialVersionUID = 1;
  private final LossReason reason;

  LostException(LossReason reason) {
    super("the lease is lost: " + reason.told);
    this.reason = reason;
  }

  /**
   * Why it is lost.
   *
   * @return the reason
   */
  public LossReason reason() {
    return reason;
  }
}
