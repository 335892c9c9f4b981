package dev.ringfence;

/**
 * The base of all errors of this library. Each tells what became of the call: refused or not done ({@link HeldException}, {@link
 * TimedOutException}, {@link InvalidException}, {@link RejectedException}, {@link UnavailableException}), unknown ({@link
 * UnknownException}), or done and over ({@link LostException}).
 */
public class RingfenceException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /**
   * An error.
   *
   * @param message what went wrong
   */
  public RingfenceException(String message) {
    super(message);
  }

  /**
   * An error with a cause.
   *
   * @param message what went wrong
   * @param cause why
   */
  public RingfenceException(String message, Throwable cause) {
    super(message, cause);
  }
}
