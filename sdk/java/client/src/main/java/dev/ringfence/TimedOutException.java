package dev.ringfence;

/** Not done in time. What may have been granted is given back in the background, where a release goes on, too. */
public final class TimedOutException extends RingfenceException {
  private static final long serialVersionUID = 1;

  /** Which time was over. */
  public enum Reason {
    /** The time in the queue: the place in it is given up. */
    WAIT,
    /** The bound of the whole call. */
    TIMEOUT
  }

  private final Reason reason;

  TimedOutException(long nanos, Reason reason) {
    super((reason == Reason.WAIT ? "not granted within " : "not done within ") + Text.seconds(nanos));
    this.reason = reason;
  }

  /**
   * Which time was over.
   *
   * @return the time in the queue, or that of the call
   */
  public Reason reason() {
    return reason;
  }
}
