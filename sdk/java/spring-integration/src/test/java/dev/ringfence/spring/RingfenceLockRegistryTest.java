package dev.ringfence.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.ringfence.HeldException;
import dev.ringfence.LockRequest;
import dev.ringfence.Program;
import dev.ringfence.Ringfence;
import dev.ringfence.StubNode;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;

// That a test fails is no reason to unlock.
@SuppressWarnings("LockNotBeforeTry")
final class RingfenceLockRegistryTest {
  private static Program node;
  private static Ringfence client;
  private static Ringfence otherClient;
  private static RingfenceLockRegistry registry;
  private static RingfenceLockRegistry other;
  private final String key = UUID.randomUUID().toString();
  private final ExecutorService pool = Executors.newCachedThreadPool();

  @BeforeAll
  static void start() throws Exception {
    node = Program.node();
    client = Ringfence.connect(node.url());
    otherClient = Ringfence.connect(node.url());
    registry = new RingfenceLockRegistry(client, "spring/");
    other = new RingfenceLockRegistry(otherClient, "spring/");
  }

  @AfterAll
  static void stop() throws Exception {
    client.close();
    otherClient.close();
    node.close();
  }

  @Test
  void itsNameIsOneSegment() {
    RingfenceLock lock = registry.obtain(key + "/..");
    lock.lock();
    assertEquals(List.of("spring/" + key + "%2F.."), lock.lease().keys());
    lock.unlock();
  }

  @Test
  void itIsReentrantAndHasOneLease() throws Exception {
    RingfenceLock lock = registry.obtain(key);
    assertTrue(lock.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
    long token = lock.lease().token();
    lock.lock();
    assertTrue(lock.tryLock());
    assertEquals(token, lock.lease().token());
    lock.unlock();
    lock.unlock();
    assertFalse(other.obtain(key).tryLock(), "two hold it");
    lock.unlock();
    assertTrue(other.obtain(key).tryLock());
    other.obtain(key).unlock();
  }

  @Test
  void threadsAndProgramsExcludeEachOther() throws Exception {
    AtomicInteger inside = new AtomicInteger();
    Future<?>[] working = new Future<?>[8];
    for (int i = 0; i < working.length; i++) {
      RingfenceLockRegistry own = i % 2 == 0 ? registry : other;
      working[i] =
          pool.submit(
              () -> {
                for (int turn = 0; turn < 10; turn++) {
                  own.executeLocked(
                      key,
                      () -> {
                        assertEquals(1, inside.incrementAndGet());
                        Thread.sleep(1);
                        inside.decrementAndGet();
                      });
                }
                return null;
              });
    }
    for (Future<?> one : working) {
      one.get();
    }
  }

  @Test
  void anotherThreadNeitherUnlocksNorHasTheLease() throws Exception {
    RingfenceLock lock = registry.obtain(key);
    lock.lock();
    pool.submit(
            () -> {
              assertThrows(IllegalMonitorStateException.class, lock::unlock);
              assertThrows(IllegalStateException.class, lock::lease);
              assertFalse(lock.tryLock());
              assertFalse(lock.tryLock(10, TimeUnit.MILLISECONDS));
              return null;
            })
        .get();
    lock.unlock();
  }

  @Test
  void waitingIsBoundedAndInterrupted() throws Exception {
    RingfenceLock lock = registry.obtain(key);
    lock.lock();
    assertFalse(other.obtain(key).tryLock(Duration.ofMillis(200), Duration.ofSeconds(5)));
    Thread waiter = Thread.currentThread();
    pool.submit(waiter::interrupt);
    assertThrows(InterruptedException.class, () -> other.obtain(key).lockInterruptibly());
    Future<Boolean> waiting =
        pool.submit(
            () -> {
              Thread.currentThread().interrupt();
              other.obtain(key).lock(Duration.ofSeconds(5));
              other.obtain(key).unlock();
              return Thread.interrupted();
            });
    lock.unlock();
    assertTrue(waiting.get(60, TimeUnit.SECONDS), "`lock` has swallowed an interrupt");
  }

  @Test
  void aLossIsToldByUnlock() throws Exception {
    RingfenceLock lock = registry.obtain(key);
    lock.lock();
    registry.renewLock(key);
    registry.renewLock(key, Duration.ofMinutes(1));
    otherClient.adopt(lock.lease().leaseId()).release();
    assertThrows(IllegalStateException.class, () -> registry.renewLock(key));
    assertThrows(ConcurrentModificationException.class, lock::lock);
    assertThrows(ConcurrentModificationException.class, lock::tryLock);
    assertThrows(ConcurrentModificationException.class, lock::unlock);
    assertTrue(lock.tryLock(), "the local lock is free");
    lock.unlock();
    assertThrows(IllegalStateException.class, () -> registry.renewLock(key));
  }

  @Test
  void aReleaseThatIsRefusedIsNoErrorOfAnUnlock() throws Exception {
    String problem = "{\"type\":\"urn:ringfence:problem:forbidden\",\"status\":403,\"detail\":\"no right\"}";
    try (StubNode stub = new StubNode((method, path, body, out) -> {
      boolean isAcquire = method.equals("PUT");
      boolean isProbe = method.equals("GET");
      StubNode.say(
          out, isAcquire ? 201 : isProbe ? 200 : 403, isAcquire ? StubNode.grant(path, 60_000) : isProbe ? "{}" : problem);
    });
        Ringfence own = Ringfence.connect(stub.url())) {
      RingfenceLock lock = new RingfenceLockRegistry(own, "").obtain("k");
      lock.lock();
      lock.unlock();
      assertTrue(lock.tryLock());
      lock.unlock();
    }
  }

  @Test
  void unusedLocksAreForgottenAndOthersAreNot() {
    RingfenceLock lock = registry.obtain(key);
    lock.lock();
    registry.expireUnusedOlderThan(0);
    assertSame(lock, registry.obtain(key));
    lock.unlock();
    registry.expireUnusedOlderThan(3_600_000);
    assertSame(lock, registry.obtain(key));
    registry.expireUnusedOlderThan(0);
    assertNotSame(lock, registry.obtain(key));
  }

  private static int waiters(String key) {
    LockRequest request = client.lock(key).waitAtMost(Duration.ZERO);
    return assertThrows(HeldException.class, request::acquire).waiters();
  }

  @Test
  void oneOfTwoCandidatesLeads() throws Exception {
    LockRegistryLeaderInitiator first = new LockRegistryLeaderInitiator(registry, new DefaultCandidate("1", key));
    LockRegistryLeaderInitiator second = new LockRegistryLeaderInitiator(other, new DefaultCandidate("2", key));
    first.start();
    Program.until("the first leads", () -> first.getContext().isLeader());
    second.start();
    Program.until("the second stands", () -> waiters("spring/" + key) == 1);
    assertFalse(second.getContext().isLeader());
    first.stop();
    Program.until("the second leads", () -> second.getContext().isLeader());
    second.stop();
  }
}
