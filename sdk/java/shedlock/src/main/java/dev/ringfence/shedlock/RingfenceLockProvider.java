package dev.ringfence.shedlock;

import dev.ringfence.Claim;
import dev.ringfence.HeldException;
import dev.ringfence.Lease;
import dev.ringfence.LostException;
import dev.ringfence.Ringfence;
import dev.ringfence.RingfenceException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * Locks of ShedLock, as leases with fencing tokens. A task finds its own by {@link #currentLease}:
 *
 * <pre>{@code
 * @Scheduled(cron = "0 * * * * *")
 * @SchedulerLock(name = "report", lockAtMostFor = "10m", lockAtLeastFor = "30s")
 * void report() {
 *   write(RingfenceLockProvider.currentLease().token());
 * }
 * }</pre>
 *
 * <p>As ShedLock promises, a lock is held for {@code lockAtMostFor}, whatever becomes of the program: it is not renewed, so no outage
 * ends it before. {@code unlock} keeps it until {@code lockAtLeastFor} has passed; if the program ends before, it is kept for {@code
 * lockAtMostFor}, which is 24 h at most. Its key is that of its name, by {@link Claim#keyOf}.
 */
public final class RingfenceLockProvider implements ExtensibleLockProvider {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final Duration SHORTEST = Duration.ofMillis(100);
  private static final Duration RENEWS_WITHIN = Duration.ofSeconds(5);
  /** What this thread has taken, the latest first. */
  private static final ThreadLocal<Deque<Taken>> OF_THREAD = ThreadLocal.withInitial(ArrayDeque::new);

  private final Ringfence client;
  private final String prefix;

  /**
   * Locks with keys that begin with {@code shedlock/}.
   *
   * @param client what to lock with
   */
  public RingfenceLockProvider(Ringfence client) {
    this(client, "shedlock/");
  }

  /**
   * Locks with keys of your own.
   *
   * @param client what to lock with
   * @param prefix what stands before the name of a lock
   */
  public RingfenceLockProvider(Ringfence client, String prefix) {
    this.client = client;
    this.prefix = prefix;
  }

  /**
   * The lease under which the task on this thread runs.
   *
   * @return that of the latest lock that this thread has taken and not unlocked
   * @throws IllegalStateException if it has none
   */
  public static Lease currentLease() {
    Taken latest = taken().peek();
    if (latest == null) {
      OF_THREAD.remove();
      throw new IllegalStateException("this thread has no lock of Ringfence");
    }
    return latest.lease;
  }

  private static Deque<Taken> taken() {
    Deque<Taken> taken = OF_THREAD.get();
    // Some may have been unlocked on other threads.
    taken.removeIf(one -> one.isLeft);
    return taken;
  }

  @Override
  public Optional<SimpleLock> lock(LockConfiguration configuration) {
    try {
      Lease lease =
          client
              .lock(Claim.keyOf(prefix, configuration.getName()))
              .waitAtMost(Duration.ZERO)
              .ttl(ttl(configuration))
              .holdAtLeast(configuration.getLockAtLeastFor())
              .withoutRenewal()
              .acquire();
      Taken taken = new Taken(lease);
      taken().push(taken);
      return Optional.of(new Lock(taken, configuration));
    } catch (HeldException held) {
      return Optional.empty();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new LockException("interrupted", error);
    }
  }

  private static Duration ttl(LockConfiguration configuration) {
    Duration atMost = configuration.getLockAtMostFor();
    return atMost.compareTo(SHORTEST) < 0 ? SHORTEST : atMost;
  }

  /** A lease that a thread has taken. Whichever thread extends its lock, it stays that of the one which runs the task. */
  private static final class Taken {
    final Lease lease;
    volatile boolean isLeft;

    Taken(Lease lease) {
      this.lease = lease;
    }
  }

  private static final class Lock extends AbstractSimpleLock {
    private final Taken taken;
    private final long takenAt = System.nanoTime();

    Lock(Taken taken, LockConfiguration configuration) {
      super(configuration);
      this.taken = taken;
    }

    @Override
    protected void doUnlock() {
      leave();
      try {
        taken.lease.release();
      } catch (LostException lost) {
        LOG.log(
            System.Logger.Level.WARNING,
            "the task " + lockConfiguration.getName() + " ran for longer than its lock: " + lost.getMessage());
      } catch (RingfenceException error) {
        LOG.log(
            System.Logger.Level.WARNING,
            "the lock of " + lockConfiguration.getName() + " is released in the background: " + error.getMessage());
      }
    }

    @Override
    protected Optional<SimpleLock> doExtend(LockConfiguration configuration) {
      if (System.nanoTime() - takenAt >= lockConfiguration.getLockAtMostFor().toNanos()) {
        // The lease may live on for a moment: none is shorter than a tenth of a second.
        leave();
        return Optional.empty();
      }
      try {
        taken.lease.renewFor(ttl(configuration), RENEWS_WITHIN);
        taken.lease.holdAtLeast(configuration.getLockAtLeastFor());
        return Optional.of(new Lock(taken, configuration));
      } catch (LostException lost) {
        // Nobody can unlock it any more.
        leave();
        return Optional.empty();
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw new LockException("interrupted", error);
      }
    }

    private void leave() {
      taken.isLeft = true;
      if (taken().isEmpty()) {
        OF_THREAD.remove();
      }
    }
  }
}
