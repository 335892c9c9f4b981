package dev.ringfence;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A thread that is interrupted if its lease is lost. Once the lease is left, no interrupt of ours reaches it any more: the next task
 * on a thread of a pool has nothing to do with this one. A flag does not tell who has set it: if the lease of another worker of the
 * thread is lost, too, it is left to that one; else it is taken for ours.
 */
final class Worker {
  private enum Step {
    WORKS,
    IS_BEING_INTERRUPTED,
    WAS_INTERRUPTED,
    HAS_LEFT
  }

  /** Those whose interrupt has come, or comes, and that have not left. */
  private static final Set<Worker> INTERRUPTED = ConcurrentHashMap.newKeySet();

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
      INTERRUPTED.add(this);
      try {
        thread.interrupt();
      } finally {
        step.set(Step.WAS_INTERRUPTED);
        if (hasLeft) {
          INTERRUPTED.remove(this);
        }
      }
    }
  }

  /** The lease is left. Takes the interrupt back, if it is the worker's thread that leaves; on another, that is not possible. */
  void leave() {
    if (ends() && INTERRUPTED.stream().noneMatch(other -> other.thread == thread)) {
      Thread.interrupted();
    }
  }

  /** No interrupt of ours comes any more. Returns whether one has come, to this thread. One that is seen later is another's. */
  boolean ends() {
    boolean isToBeTakenBack = !step.compareAndSet(Step.WORKS, Step.HAS_LEFT) && isCurrent();
    // Briefly: this thread waits for no channel now, so there is none to close.
    while (isToBeTakenBack && step.get() == Step.IS_BEING_INTERRUPTED) {
      Thread.onSpinWait();
    }
    hasLeft = true;
    INTERRUPTED.remove(this);
    return isToBeTakenBack && step.compareAndSet(Step.WAS_INTERRUPTED, Step.HAS_LEFT);
  }
}
