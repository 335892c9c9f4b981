package dev.ringfence.spring;

import dev.ringfence.ClosedException;
import dev.ringfence.Lease;
import dev.ringfence.LockRequest;
import dev.ringfence.LostException;
import dev.ringfence.RejectedException;
import dev.ringfence.UnavailableException;
import dev.ringfence.UnknownException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.springframework.integration.support.locks.DistributedLock;

/** A lock of a {@link RingfenceLockRegistry}. Within this program, its threads wait for each other before they wait for the cluster. */
public final class RingfenceLock implements DistributedLock {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");

  private final LockRequest request;
  private final ReentrantLock local = new ReentrantLock(true);
  /** That of the thread which has the local lock. */
  private Lease lease;

  private volatile long usedAt = System.nanoTime();

  RingfenceLock(LockRequest request) {
    this.request = request;
  }

  /** What is done to get a lease, once the local lock is there. */
  @FunctionalInterface
  private interface Acquire {
    Optional<Lease> run() throws InterruptedException;
  }

  /**
   * The lease of this lock: its token goes with every access to what the lock protects.
   *
   * @return the lease
   * @throws IllegalStateException if this thread does not hold the lock
   */
  public Lease lease() {
    if (!local.isHeldByCurrentThread()) {
      throw new IllegalStateException("this thread does not hold the lock");
    }
    return lease;
  }

  @Override
  public void lock() {
    lockUninterruptibly(request);
  }

  @Override
  public void lock(Duration ttl) {
    lockUninterruptibly(request.ttl(ttl));
  }

  private void lockUninterruptibly(LockRequest wanted) {
    boolean wasInterrupted = false;
    local.lock();
    try {
      while (true) {
        try {
          acquire(() -> Optional.of(wanted.acquire()));
          return;
        } catch (InterruptedException error) {
          // It waits all the same, and tells later.
          wasInterrupted = true;
          local.lock();
        }
      }
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    local.lockInterruptibly();
    acquire(() -> Optional.of(request.acquire()));
  }

  @Override
  public boolean tryLock() {
    if (!local.tryLock()) {
      return false;
    }
    try {
      return acquire(request::tryAcquire);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return tryLock(unit.toNanos(time), request);
  }

  @Override
  public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
    return tryLock(TimeUnit.NANOSECONDS.convert(waitTime), request.ttl(ttl));
  }

  private boolean tryLock(long nanos, LockRequest wanted) throws InterruptedException {
    long begun = System.nanoTime();
    if (!local.tryLock(nanos, TimeUnit.NANOSECONDS)) {
      return false;
    }
    long left = Math.max(0, nanos - (System.nanoTime() - begun));
    return acquire(() -> wanted.tryAcquire(Duration.ofNanos(left)));
  }

  /** Acquires the lease, unless this thread has it: then it must not be lost. The local lock is given back if there is none. */
  private boolean acquire(Acquire acquire) throws InterruptedException {
    boolean isHeld = false;
    try {
      if (local.getHoldCount() > 1) {
        lease.check();
        isHeld = true;
      } else {
        Optional<Lease> found = acquire.run();
        lease = found.orElse(null);
        isHeld = found.isPresent();
      }
      return isHeld;
    } catch (LostException lost) {
      throw modified(lost);
    } finally {
      usedAt = System.nanoTime();
      if (!isHeld) {
        local.unlock();
      }
    }
  }

  @Override
  public void unlock() {
    if (!local.isHeldByCurrentThread()) {
      throw new IllegalMonitorStateException("this thread does not hold the lock");
    }
    Lease left = null;
    if (local.getHoldCount() == 1) {
      left = lease;
      lease = null;
    }
    usedAt = System.nanoTime();
    try {
      if (left != null) {
        release(left);
      }
    } finally {
      local.unlock();
    }
  }

  private static void release(Lease lease) {
    try {
      lease.release();
    } catch (LostException lost) {
      throw modified(lost);
    } catch (ClosedException | UnknownException | UnavailableException | RejectedException error) {
      LOG.log(System.Logger.Level.DEBUG, "an unlock has not released its lease: {0}", error.getMessage());
    }
  }

  private static ConcurrentModificationException modified(LostException lost) {
    ConcurrentModificationException error =
        new ConcurrentModificationException("the lock was lost: what it protects may have met another holder");
    error.initCause(lost);
    return error;
  }

  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock that programs share has no conditions");
  }

  boolean isUnusedFor(Duration time) {
    return !local.isLocked() && !local.hasQueuedThreads() && System.nanoTime() - usedAt >= time.toNanos();
  }
}
