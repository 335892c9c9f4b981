package dev.ringfence;

/** The request is invalid, and nothing was sent. */
public final class InvalidException extends RingfenceException {
  private static final long serialVersionUID = 1;
  private final String field;

  InvalidException(String field, String detail) {
    super(field + ": " + detail);
    this.field = field;
  }

  /**
   * Where the error is.
   *
   * @return for example {@code ttl}, {@code keys[2]} or {@code urls[0]}
   */
  public String field() {
    return field;
  }
}
