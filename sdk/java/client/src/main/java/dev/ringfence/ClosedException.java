package dev.ringfence;

/** The client is closed. */
public final class ClosedException extends RingfenceException {
  private static final long serialVersionUID = 1;

  ClosedException() {
    super("the client is closed");
  }
}
