package dev.ringfence.hazelcast;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.ISemaphore;
import com.hazelcast.cp.lock.FencedLock;
import com.hazelcast.cp.lock.exception.LockAcquireLimitReachedException;
import com.hazelcast.cp.lock.exception.LockOwnershipLostException;
import dev.ringfence.Claim;
import dev.ringfence.Lease;
import dev.ringfence.LeaseState;
import dev.ringfence.LockRequest;
import dev.ringfence.LossReason;
import dev.ringfence.LostException;
import dev.ringfence.Program;
import dev.ringfence.Ringfence;
import dev.ringfence.spring.RingfenceLock;
import dev.ringfence.spring.RingfenceLockRegistry;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Plays the table of `from-hazelcast.md`: the same steps on a lock of Hazelcast, and here. */
// That a test fails is no reason to unlock.
@SuppressWarnings("LockNotBeforeTry")
final class FromHazelcastTest {
  private static final Duration SHORT = Duration.ofMillis(300);
  private static Hazelcast cluster;
  private static HazelcastInstance hazelcast;
  private static HazelcastInstance otherHazelcast;
  private static Program node;
  private static Ringfence client;
  private static Ringfence otherClient;

  private final String key = "accounts/" + UUID.randomUUID();
  private final ExecutorService pool = Executors.newCachedThreadPool();
  private final FencedLock old = hazelcast.getCPSubsystem().getLock(key);
  private final FencedLock otherOld = otherHazelcast.getCPSubsystem().getLock(key);
  private final LockRequest lock = client.lock(key);
  private final LockRequest otherLock = otherClient.lock(key);

  @BeforeAll
  static void start() throws Exception {
    cluster = new Hazelcast();
    hazelcast = cluster.client();
    otherHazelcast = cluster.client();
    node = Program.node();
    client = Ringfence.connect(node.url());
    otherClient = Ringfence.connect(node.url());
  }

  @AfterAll
  static void stop() throws Exception {
    cluster.close();
    client.close();
    otherClient.close();
    node.close();
  }

  @AfterEach
  void end() {
    pool.shutdownNow();
  }

  private <T> T elsewhere(Callable<T> work) throws Exception {
    return pool.submit(work).get(60, TimeUnit.SECONDS);
  }

  /** Interrupts a thread that waits in a call, and returns how that ends once the lock is free. */
  private <T> T interrupted(Callable<T> waits, Callable<?> free) throws Exception {
    CountDownLatch begun = new CountDownLatch(1);
    AtomicReference<Thread> thread = new AtomicReference<>();
    Future<T> waiting =
        pool.submit(
            () -> {
              thread.set(Thread.currentThread());
              begun.countDown();
              return waits.call();
            });
    begun.await();
    Program.until("it waits", () -> thread.get().getState() != Thread.State.RUNNABLE);
    thread.get().interrupt();
    // Once it has seen that, it has ended, or waits again.
    Program.until("it is interrupted", () -> waiting.isDone() || thread.get().getState() != Thread.State.RUNNABLE);
    free.call();
    return waiting.get(60, TimeUnit.SECONDS);
  }

  @Test
  void lockAndUnlock() throws Exception {
    old.lock();
    assertFalse(otherOld.tryLock());
    old.unlock();
    assertTrue(otherOld.tryLock());
    otherOld.unlock();

    try (Lease lease = lock.acquire()) {
      assertEquals(Optional.empty(), otherLock.tryAcquire());
    }
    otherLock.tryAcquire().orElseThrow().close();
  }

  @Test
  void fencesIncreaseAndTokensAreLarger() throws Exception {
    long first = old.lockAndGetFence();
    assertEquals(first, old.getFence());
    old.unlock();
    long second = otherOld.lockAndGetFence();
    assertTrue(second > first);
    otherOld.unlock();

    Lease lease = lock.acquire();
    lease.close();
    Lease next = client.lock(key + "/other").acquire();
    next.close();
    assertTrue(next.token() > lease.token(), "of another key");
    assertTrue(lease.token() >= 1L << 50 && lease.token() > second, "storage that has compared fences accepts tokens");
  }

  @Test
  void tryLockWithoutAndWithATime() throws Exception {
    old.lock();
    assertEquals(FencedLock.INVALID_FENCE, otherOld.tryLockAndGetFence());
    assertFalse(otherOld.tryLock(SHORT.toMillis(), TimeUnit.MILLISECONDS));
    old.unlock();

    try (Lease lease = lock.acquire()) {
      assertEquals(Optional.empty(), otherLock.tryAcquire());
      assertEquals(Optional.empty(), otherLock.tryAcquire(SHORT));
    }
  }

  @Test
  void anInterruptEndsLockInterruptibly() throws Exception {
    old.lock();
    Callable<Void> waits =
        () -> {
          otherOld.lockInterruptibly();
          return null;
        };
    ExecutionException error =
        assertThrows(ExecutionException.class, () -> interrupted(waits, FromHazelcastTest::nothing));
    assertInstanceOf(InterruptedException.class, error.getCause());
    old.unlock();

    try (Lease lease = lock.acquire()) {
      error =
          assertThrows(ExecutionException.class, () -> interrupted(otherLock::acquire, FromHazelcastTest::nothing));
      assertInstanceOf(InterruptedException.class, error.getCause());
    }
  }

  private static Void nothing() {
    return null;
  }

  @Test
  void anInterruptEndsTheLockOfAClientAndOfNoMember() throws Exception {
    old.lock();
    Callable<Void> waits =
        () -> {
          otherOld.lock();
          return null;
        };
    ExecutionException error =
        assertThrows(ExecutionException.class, () -> interrupted(waits, FromHazelcastTest::nothing));
    assertInstanceOf(HazelcastException.class, error.getCause());
    old.unlock();

    String free = key + "/other";
    staysUninterrupted(hazelcast.getCPSubsystem().getLock(free), cluster.member().getCPSubsystem().getLock(free));
    RingfenceLockRegistry registry = new RingfenceLockRegistry(client, "accounts/");
    RingfenceLockRegistry other = new RingfenceLockRegistry(otherClient, "accounts/");
    staysUninterrupted(registry.obtain(key), other.obtain(key));
  }

  private void staysUninterrupted(Lock held, Lock wanted) throws Exception {
    held.lock();
    Callable<Boolean> waits =
        () -> {
          wanted.lock();
          wanted.unlock();
          return Thread.interrupted();
        };
    Callable<Void> free =
        () -> {
          held.unlock();
          return null;
        };
    assertTrue(interrupted(waits, free), "the flag is kept");
  }

  @Test
  void whoMayUnlock() throws Exception {
    old.lock();
    ExecutionException error =
        assertThrows(
            ExecutionException.class,
            () ->
                elsewhere(
                    () -> {
                      old.unlock();
                      return null;
                    }));
    assertInstanceOf(IllegalMonitorStateException.class, error.getCause());
    old.unlock();

    Lease lease = lock.acquire();
    elsewhere(
        () -> {
          lease.release();
          return null;
        });
    otherLock.tryAcquire().orElseThrow().close();
  }

  @Test
  void aSecondLockByTheSameThread() throws Exception {
    long fence = old.lockAndGetFence();
    assertEquals(fence, old.lockAndGetFence());
    assertTrue(old.isLockedByCurrentThread());
    assertEquals(2, old.getLockCount());
    old.unlock();
    old.unlock();

    try (Lease lease = lock.acquire()) {
      assertEquals(LeaseState.HELD, lease.state());
      assertEquals(Optional.empty(), lock.tryAcquire(SHORT));
    }
    RingfenceLock reentrant = new RingfenceLockRegistry(client, "accounts/").obtain(key);
    reentrant.lock();
    long token = reentrant.lease().token();
    reentrant.lock();
    assertEquals(token, reentrant.lease().token());
    reentrant.unlock();
    reentrant.unlock();
  }

  @Test
  void whetherItIsLocked() throws Exception {
    old.lock();
    assertTrue(otherOld.isLocked());
    old.unlock();
    assertFalse(otherOld.isLocked());

    try (Lease lease = lock.holder("me").acquire()) {
      assertEquals("me", otherClient.holders(key).get(0).holder());
    }
    assertTrue(otherClient.holders(key).isEmpty());
  }

  @Test
  void aLockThatIsLost() throws Exception {
    HazelcastInstance cutOff = cluster.client();
    FencedLock lost = cutOff.getCPSubsystem().getLock(key);
    lost.lock();
    cluster.endSession(cutOff);
    otherOld.lock();
    assertThrows(LockOwnershipLostException.class, lost::unlock);
    otherOld.unlock();

    CountDownLatch isTold = new CountDownLatch(1);
    Lease lease = lock.onLost(loss -> isTold.countDown()).acquire();
    // Another may end it, as an operator does.
    otherClient.adopt(lease.leaseId()).release();
    assertEquals(Optional.of(LossReason.RELEASED), lease.awaitLoss(Duration.ofMinutes(1)));
    assertTrue(isTold.await(1, TimeUnit.MINUTES));
    assertThrows(LostException.class, lease::check);
    assertThrows(LostException.class, lease::close);
  }

  @Test
  void aLimitOfAcquires() throws Exception {
    FencedLock limited = hazelcast.getCPSubsystem().getLock("limited");
    limited.lock();
    assertThrows(LockAcquireLimitReachedException.class, limited::lock);
    limited.unlock();

    Lease lease = lock.acquire();
    Future<Lease> second = pool.submit(() -> lock.acquire());
    assertEquals(Optional.empty(), lock.tryAcquire(SHORT));
    lease.close();
    second.get(60, TimeUnit.SECONDS).close();
  }

  @Test
  void aHolderThatDies() throws Exception {
    Holder.dies(cluster, node.url(), key);
    assertEquals(Optional.empty(), lock.tryAcquire());
    lock.acquire().close();
    assertFalse(old.tryLock(), "its session lives for longer than the time-to-live of a lease");
    old.lock();
    old.unlock();
  }

  @Test
  void aClientThatCloses() throws Exception {
    HazelcastInstance closes = cluster.client();
    FencedLock held = closes.getCPSubsystem().getLock(key);
    held.lock();
    closes.shutdown();
    Program.until("its session has ended", old::tryLock);
    old.unlock();

    Ringfence closed = Ringfence.connect(node.url());
    closed.lock(key).acquire();
    closed.close();
    lock.tryAcquire().orElseThrow().close();
  }

  @Test
  void aSemaphore() throws Exception {
    ISemaphore permits = hazelcast.getCPSubsystem().getSemaphore(key);
    permits.init(2);
    permits.acquire(2);
    assertFalse(otherHazelcast.getCPSubsystem().getSemaphore(key).tryAcquire());
    permits.release(2);

    LockRequest one = client.lock(Claim.limited(key, 2));
    List<Lease> leases = List.of(one.acquire(), one.acquire());
    assertEquals(Optional.empty(), otherClient.lock(Claim.limited(key, 2)).tryAcquire());
    leases.forEach(Lease::close);
  }

  @Test
  void noCondition() {
    assertThrows(UnsupportedOperationException.class, old::newCondition);
    Lock lock = new RingfenceLockRegistry(client, "accounts/").obtain(key);
    assertThrows(UnsupportedOperationException.class, lock::newCondition);
  }
}
