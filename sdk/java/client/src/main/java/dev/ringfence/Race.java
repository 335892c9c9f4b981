package dev.ringfence;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;

/** Stands for election, works as the leader, and stands again after a loss. */
final class Race<T, E extends Exception> {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");

  private final LockRequest request;
  private final Work<T, E> work;
  private final Consumer<? super Exception> onError;
  /** Whether the caller was interrupted. */
  private volatile boolean isStopped;

  Race(LockRequest request, Work<T, E> work, Consumer<? super Exception> onError) {
    this.request = request;
    this.work = work;
    this.onError = onError;
  }

  /** Runs it on this thread. */
  T run() throws E, InterruptedException {
    while (!isStopped) {
      Lease lease;
      try {
        lease = request.acquire();
      } catch (RingfenceException error) {
        if (!isPassing(error)) {
          throw error;
        }
        LOG.log(System.Logger.Level.WARNING, "cannot stand for election: {0}", error.getMessage());
        pause();
        continue;
      }
      Term<T> term = Term.of(lease, work);
      if (term.isLast()) {
        return term.<E>result();
      }
      if (term.isToBeReported()) {
        report(term.failure());
      }
      if (term.failure() != null && !isStopped) {
        pause();
      }
    }
    throw new InterruptedException();
  }

  /** Runs it on a thread of its own, that a loss interrupts: so an interrupt of this one is the user's, and ends the race. */
  T runApart() throws E, InterruptedException {
    FutureTask<T> running = new FutureTask<>(this::run);
    Thread thread = new Thread(running, "ringfence-leader");
    thread.start();
    try {
      while (true) {
        try {
          return running.get();
        } catch (InterruptedException stop) {
          isStopped = true;
          // It may close a channel, which is code of the user.
          Workers.guarded(thread::interrupt).run();
        }
      }
    } catch (ExecutionException error) {
      if (error.getCause() instanceof InterruptedException stop) {
        isStopped = false;
        throw stop;
      }
      if (error.getCause() instanceof Error bug) {
        throw bug;
      }
      @SuppressWarnings("unchecked") // Work throws nothing else.
      E failure = (E) error.getCause();
      throw failure;
    } finally {
      if (isStopped) {
        // It has ended in another way, and the caller is to know.
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Whether another try may end in another way. A lease may be lost before anybody works under it. */
  private static boolean isPassing(RingfenceException error) {
    return error instanceof UnavailableException
        || error instanceof UnknownException
        || error instanceof LostException
        || error instanceof RejectedException rejected && rejected.kind().equals("overloaded");
  }

  private void report(Exception failure) {
    try {
      onError.accept(failure);
    } catch (RuntimeException error) {
      LOG.log(System.Logger.Level.ERROR, "what is told of errors has failed: " + error, error);
    }
  }

  private static void pause() throws InterruptedException {
    Thread.sleep(ThreadLocalRandom.current().nextLong(500, 1_000));
  }
}
