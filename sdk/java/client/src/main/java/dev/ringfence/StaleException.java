package dev.ringfence;

/**
 * The storage refused a write or a read, because its token is stale: the lease has ended, and a later one is in use. Stop, acquire
 * a new lease, and read again. A repeat cannot succeed. Guards throw it, and so may your own storage code.
 */
public final class StaleException extends RingfenceException {
  private static final long serialVersionUID = 1;

  /**
   * An error of your storage code.
   *
   * @param message what the storage said
   */
  public StaleException(String message) {
    super(message);
  }

  /**
   * An error of your storage code.
   *
   * @param message what the storage said
   * @param cause its error
   */
  public StaleException(String message, Throwable cause) {
    super(message, cause);
  }
}
