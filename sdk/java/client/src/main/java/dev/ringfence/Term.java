package dev.ringfence;

/** What became of a term of work that leads, which ends with its lease. The end of the lease may be the first to tell. */
record Term<T>(T value, Exception failure, boolean isLost, boolean wasInterrupted) {
  static <T> Term<T> of(Lease lease, Work<T, ?> work) {
    T value = null;
    Exception failure = null;
    boolean isLost = false;
    boolean wasInterrupted = false;
    try {
      value = work.run(lease);
    } catch (Exception error) {
      failure = error;
    } finally {
      // Then ours is spent, and one that is there now is kept.
      wasInterrupted = failure instanceof InterruptedException && lease.hasInterrupted();
      isLost = lease.isLost();
      try {
        // Only after the work has ended.
        lease.close();
      } catch (LostException error) {
        isLost = true;
      }
    }
    return new Term<>(value, failure, isLost, wasInterrupted);
  }

  /** Whether the race is over. A {@code LostException} may be of another lease. */
  boolean isLast() {
    if (failure instanceof InterruptedException) {
      // Ours says only that the lease is lost.
      return !wasInterrupted;
    }
    return !isLost && !(failure instanceof StaleException);
  }

  /** Whether the user is to learn of the failure, although the race goes on. */
  boolean isToBeReported() {
    return failure != null && !(failure instanceof LostException) && !(failure instanceof InterruptedException);
  }

  /** The result of the last term. */
  @SuppressWarnings("unchecked") // Work throws nothing else.
  <E extends Exception> T result() throws E {
    if (failure != null) {
      throw (E) failure;
    }
    return value;
  }
}
