package dev.ringfence;

import java.util.concurrent.atomic.AtomicReference;

/**
 * A thread that is interrupted if its lease is lost. Once the lease is left, no interrupt of ours reaches it any more: the next task
 * on a thread of a pool has nothing to do with this one.
 */
final class Worker {
  private enum Step {
    WORKS,
    IS_BEING_INTERRUPTED,
    WAS_INTERRUPTED,
    HAS_LEFT
  }

  private final Thread thread;
  private final AtomicReference<Step> step = new AtomicReference<>(Step.WORKS);

  Worker(Thread thread) {
    this.thread = thread;
  }

  /** The lease is lost. */
  void interrupt() {
    // Whoever has found out by itself needs no interrupt.
    if (Thread.currentThread() != thread && step.compareAndSet(Step.WORKS, Step.IS_BEING_INTERRUPTED)) {
      thread.interrupt();
      step.set(Step.WAS_INTERRUPTED);
    }
  }

  /** The lease is left. Takes the interrupt back, if it is the worker's thread that leaves. */
  void leave() {
    if (step.compareAndSet(Step.WORKS, Step.HAS_LEFT)) {
      return;
    }
    while (step.get() == Step.IS_BEING_INTERRUPTED) {
      Thread.onSpinWait();
    }
    if (step.compareAndSet(Step.WAS_INTERRUPTED, Step.HAS_LEFT) && Thread.currentThread() == thread) {
      Thread.interrupted();
    }
  }

  /** Whether this has interrupted it, and it has not left since. */
  boolean wasInterrupted() {
    return step.get() == Step.WAS_INTERRUPTED;
  }
}
