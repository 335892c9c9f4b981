package dev.ringfence;

/** There is no response. */
abstract class NoAnswer extends Exception {
  private static final long serialVersionUID = 1;

  private NoAnswer(String message) {
    super(message, null, false, false);
  }

  /** Nothing was sent. */
  static class NotSent extends NoAnswer {
    private static final long serialVersionUID = 1;

    NotSent(String message) {
      super(message);
    }
  }

  /** One side refused the other's certificate: no repeat mends that. */
  static final class Untrusted extends NotSent {
    private static final long serialVersionUID = 1;

    Untrusted(String message) {
      super(message);
    }
  }

  /** Some of the request may have been sent. */
  static class Broken extends NoAnswer {
    private static final long serialVersionUID = 1;

    Broken(String message) {
      super(message);
    }
  }

  /** A wait that goes on elsewhere. Its connection stays open until the exchange is aborted. */
  static final class Left extends Broken {
    private static final long serialVersionUID = 1;
    final transient Exchange open;

    Left(String message, Exchange open) {
      super(message);
      this.open = open;
    }
  }
}
