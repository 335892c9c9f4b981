package dev.ringfence;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The threads of a client. They are daemons, begin with the first work, and end some seconds after the last. Nothing of the user
 * runs on those that renew: callbacks, hooks and interrupts have threads of their own.
 */
final class Workers {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final long LINGER_S = 5;
  /** Each request has one while it is under way, and each renewal, batch and probe one more. */
  private static final int MOST_IO = 400;
  private static final int MOST_RELEASES = 32;
  private static final int MOST_CALLBACKS = 64;

  private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, named("timer"));
  private final ThreadPoolExecutor io = pool("io", MOST_IO);
  private final Lane releases = new Lane("release", MOST_RELEASES);
  /** Each interrupt has one: it may close a channel, which blocks for as long as the user likes. */
  private final ThreadPoolExecutor interrupts = pool("interrupt", Integer.MAX_VALUE);
  private final Lane callbacks = new Lane("on-lost", MOST_CALLBACKS);
  private final Lane hooks = new Lane("hooks", 1);

  Workers() {
    timer.setRemoveOnCancelPolicy(true);
    timer.setKeepAliveTime(LINGER_S, TimeUnit.SECONDS);
    timer.allowCoreThreadTimeOut(true);
  }

  /** Runs it once some time has passed; on one thread for all, so it must not block. */
  ScheduledFuture<?> later(long nanos, Runnable work) {
    try {
      return timer.schedule(guarded(work), Math.max(0, nanos), TimeUnit.NANOSECONDS);
    } catch (RejectedExecutionException closed) {
      return null;
    }
  }

  /** Begins work that may block. Returns whether it has: the client may be closed, or the machine have no room for a thread. */
  boolean begin(Runnable work) {
    return begin(io, guarded(work));
  }

  /** Begins a release, or has it wait for others. */
  boolean release(Runnable work) {
    return releases.begin(guarded(work));
  }

  /** Interrupts whoever works, after a loss. It waits for no other. */
  boolean interrupt(Runnable work) {
    return begin(interrupts, guarded(work));
  }

  /** Calls what the user has written, after a loss. */
  boolean callback(Runnable work) {
    return callbacks.begin(guarded(work));
  }

  /** Calls a hook, after those before. */
  boolean hook(Runnable work) {
    return hooks.begin(guarded(work));
  }

  /** How many hooks wait for their turn. */
  int waitingHooks() {
    return hooks.waiting();
  }

  /** Takes no more work. What runs goes on, and what the user has written is not interrupted. */
  void end() {
    timer.shutdownNow();
    io.shutdown();
    releases.pool.shutdown();
    interrupts.shutdown();
    callbacks.pool.shutdown();
    hooks.pool.shutdown();
  }

  private static boolean begin(ThreadPoolExecutor executor, Runnable work) {
    try {
      executor.execute(work);
      return true;
    } catch (RejectedExecutionException | OutOfMemoryError noRoom) {
      // The error says that no thread could be made.
      return false;
    }
  }

  /** The same, which fails with nothing. */
  static Runnable guarded(Runnable work) {
    return () -> {
      try {
        work.run();
      } catch (Throwable error) {
        report(error);
      }
    };
  }

  private static void report(Throwable error) {
    try {
      LOG.log(System.Logger.Level.ERROR, "work in the background has failed: " + error, error);
    } catch (Throwable alsoFailed) {
      // What the program logs with fails, too: the next work begins all the same.
    }
  }

  private static ThreadPoolExecutor pool(String name, int most) {
    return new ThreadPoolExecutor(0, most, LINGER_S, TimeUnit.SECONDS, new SynchronousQueue<>(), named(name));
  }

  /** Work of which so much is done at once, and the rest in its order. It makes no more threads than it needs. */
  private static final class Lane {
    final ThreadPoolExecutor pool;
    private final Deque<Runnable> queue = new ArrayDeque<>();
    private final int most;
    private int running;

    Lane(String name, int most) {
      this.most = most;
      // A thread that has just ended its work may be counted yet.
      this.pool = pool(name, 2 * most);
    }

    synchronized int waiting() {
      return queue.size();
    }

    boolean begin(Runnable work) {
      synchronized (this) {
        if (running == most) {
          queue.add(work);
          return true;
        }
        running++;
      }
      boolean isBegun = Workers.begin(pool, () -> run(work));
      if (!isBegun) {
        synchronized (this) {
          running--;
        }
      }
      return isBegun;
    }

    private void run(Runnable first) {
      for (Runnable work = first; work != null; work = next()) {
        // An interrupt was meant for the work before.
        Thread.interrupted();
        work.run();
      }
    }

    private synchronized Runnable next() {
      Runnable next = queue.poll();
      running -= next == null ? 1 : 0;
      return next;
    }
  }

  private static ThreadFactory named(String name) {
    AtomicInteger count = new AtomicInteger();
    return work -> {
      Thread thread = new Thread(work, "ringfence-" + name + "-" + count.incrementAndGet());
      thread.setDaemon(true);
      return thread;
    };
  }
}
