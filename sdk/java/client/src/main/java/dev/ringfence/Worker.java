package dev.ringfence;

import java.util.Collections;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A thread that is interrupted if its lease is lost. Once the lease is left, no interrupt of ours reaches it any more: the next task
 * on a thread of a pool has nothing to do with this one. A flag does not tell who has set it: if the lease of another worker of the
 * thread is lost, too, it is left to that one; else it is taken for ours.
 *
 * <p>{@code Thread.interrupt} may be code of the user, and wait for a lock that the worker has. So whoever leaves waits for an interrupt
 * that has begun only briefly. If it takes longer, its flag is taken back all the same; but if that is not set yet, it comes later, and
 * reaches what the thread does then.
 */
final class Worker {
  private enum Step {
    WORKS,
    IS_BEING_INTERRUPTED,
    WAS_INTERRUPTED,
    HAS_LEFT
  }

  private static final long LEAVES_WITHIN = 100 * Checks.MS;

  /** Those whose interrupt has come, or comes, and that have not left. */
  private static final Set<Worker> INTERRUPTED = Collections.newSetFromMap(new WeakHashMap<>());

  private final Thread thread;
  private final AtomicReference<Step> step = new AtomicReference<>(Step.WORKS);
  private volatile boolean hasLeft;

  Worker(Thread thread) {
    this.thread = thread;
  }

  /** Whether this is its thread: whoever has found out by itself needs no interrupt. */
  boolean isCurrent() {
    return Thread.currentThread() == thread;
  }

  /** The lease is lost. An interrupt closes the channel that the thread waits for, and that may be code of the user. */
  void interrupt() {
    if (step.compareAndSet(Step.WORKS, Step.IS_BEING_INTERRUPTED)) {
      synchronized (INTERRUPTED) {
        INTERRUPTED.add(this);
      }
      try {
        thread.interrupt();
      } finally {
        step.compareAndSet(Step.IS_BEING_INTERRUPTED, Step.WAS_INTERRUPTED);
        if (hasLeft) {
          forget();
        }
      }
    }
  }

  /** The lease is left. Takes the interrupt back, if it is the worker's thread that leaves; on another, that is not possible. */
  void leave() {
    if (ends() && !isInterruptedByAnother()) {
      Thread.interrupted();
    }
  }

  private boolean isInterruptedByAnother() {
    synchronized (INTERRUPTED) {
      return INTERRUPTED.stream().anyMatch(other -> other.thread == thread);
    }
  }

  private void forget() {
    synchronized (INTERRUPTED) {
      INTERRUPTED.remove(this);
    }
  }

  /** No interrupt of ours begins any more. Returns whether one has come, or comes, to this thread. One that is seen later is another's. */
  boolean ends() {
    boolean isToBeTakenBack = !step.compareAndSet(Step.WORKS, Step.HAS_LEFT) && isCurrent();
    long begun = Clock.nanos();
    while (isToBeTakenBack && step.get() == Step.IS_BEING_INTERRUPTED && Clock.nanos() - begun < LEAVES_WITHIN) {
      Thread.onSpinWait();
    }
    hasLeft = true;
    forget();
    return isToBeTakenBack && step.getAndSet(Step.HAS_LEFT) != Step.HAS_LEFT;
  }
}
