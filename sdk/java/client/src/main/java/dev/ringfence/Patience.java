package dev.ringfence;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** How long a call may wait: until its bound, an interrupt of its thread, or the end of its client. One thread waits with it. */
final class Patience {
  private final CompletableFuture<Void> stopped = new CompletableFuture<>();
  private final long bound;
  private final long until;
  private volatile RingfenceException why;
  /** What was waited for last: each wait leaves something behind in what it waits for, until that ends. */
  private CompletableFuture<?> last;

  private CompletableFuture<?> lastOrStopped;

  private Patience(long bound, long until) {
    this.bound = bound;
    this.until = until;
  }

  /** Until it is stopped. */
  static Patience endless() {
    return new Patience(0, Long.MAX_VALUE);
  }

  /** For so many nanoseconds at most. */
  static Patience of(long nanos) {
    return new Patience(nanos, Clock.nanos() + nanos);
  }

  /** Ends all its waits with this error. */
  void stop(RingfenceException error) {
    why = error;
    stopped.complete(null);
  }

  /** Waits for something to end, for so long at most. Returns whether it has. */
  boolean await(CompletableFuture<?> something, long nanos) throws InterruptedException {
    long most = Math.min(nanos, until - Clock.nanos());
    try {
      if (most > 0 && !stopped.isDone()) {
        if (something != last) {
          last = something;
          lastOrStopped = CompletableFuture.anyOf(something, stopped);
        }
        lastOrStopped.get(most, TimeUnit.NANOSECONDS);
      }
    } catch (ExecutionException | TimeoutException ended) {
      // Below.
    }
    if (something.isDone()) {
      return true;
    }
    check();
    return false;
  }

  /** Waits for so long. */
  void sleep(long nanos) throws InterruptedException {
    long most = Math.min(nanos, until - Clock.nanos());
    try {
      stopped.get(Math.max(0, most), TimeUnit.NANOSECONDS);
    } catch (ExecutionException | TimeoutException ended) {
      // Below.
    }
    check();
  }

  /** Fails if it is over, or the thread was interrupted. */
  void check() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
    if (why != null) {
      throw why;
    }
    if (Clock.nanos() >= until) {
      throw new TimedOutException(bound, TimedOutException.Reason.TIMEOUT);
    }
  }
}
