package dev.ringfence.spring;

import dev.ringfence.Claim;
import dev.ringfence.LockRequest;
import dev.ringfence.LostException;
import dev.ringfence.Ringfence;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.UnaryOperator;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Locks of Spring Integration, as leases with fencing tokens. They are reentrant, per thread.
 *
 * <pre>{@code
 * RingfenceLock lock = registry.obtain(42);
 * lock.lock();
 * try {
 *   write(lock.lease().token());
 * } finally {
 *   lock.unlock();
 * }
 * }</pre>
 *
 * <p>A lock is renewed until it is unlocked, and lost only if this program cannot reach the cluster, or is stopped, for its time-to-live.
 * {@code unlock} then throws a {@link java.util.ConcurrentModificationException}, as that of other registries does. Nobody has to call
 * {@link #renewLock(Object)}.
 *
 * <p>The registry keeps a lock for each key that was ever obtained: if these are many, call {@link #expireUnusedOlderThan} now and then.
 */
public final class RingfenceLockRegistry
    implements RenewableLockRegistry<RingfenceLock>, ExpirableLockRegistry<RingfenceLock> {
  private static final Duration RENEWS_WITHIN = Duration.ofSeconds(5);

  private final Ringfence client;
  private final String prefix;
  private final UnaryOperator<LockRequest> options;
  private final Map<String, RingfenceLock> locks = new ConcurrentHashMap<>();

  /**
   * A registry of locks with a time-to-live of 15 s.
   *
   * @param client what to lock with
   * @param prefix what stands before the names of locks, such as {@code accounts/}: their keys are by {@link Claim#keyOf}
   */
  public RingfenceLockRegistry(Ringfence client, String prefix) {
    this(client, prefix, UnaryOperator.identity());
  }

  /**
   * A registry of locks with options of your own.
   *
   * @param client what to lock with
   * @param prefix what stands before the names of locks
   * @param options changes each request, as in {@code lock -> lock.ttl(Duration.ofMinutes(1)).interruptOnLoss()}
   */
  public RingfenceLockRegistry(Ringfence client, String prefix, UnaryOperator<LockRequest> options) {
    this.client = client;
    this.prefix = prefix;
    this.options = options;
  }

  @Override
  public RingfenceLock obtain(Object lockKey) {
    String key = Claim.keyOf(prefix, Objects.toString(lockKey, null));
    return locks.computeIfAbsent(key, name -> new RingfenceLock(options.apply(client.lock(name))));
  }

  @Override
  public void renewLock(Object lockKey) {
    renew(lockKey, null);
  }

  @Override
  public void renewLock(Object lockKey, Duration ttl) {
    renew(lockKey, ttl);
  }

  private void renew(Object lockKey, Duration ttl) {
    RingfenceLock lock = obtain(lockKey);
    try {
      if (ttl == null) {
        lock.lease().renew(RENEWS_WITHIN);
      } else {
        lock.lease().renewFor(ttl, RENEWS_WITHIN);
      }
    } catch (LostException lost) {
      throw new IllegalStateException("cannot renew the lock of " + lockKey, lost);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while the lock of " + lockKey + " was renewed", error);
    }
  }

  @Override
  public void expireUnusedOlderThan(long ageMs) {
    locks.values().removeIf(lock -> lock.isUnusedFor(Duration.ofMillis(ageMs)));
  }
}
