package dev.ringfence.shedlock;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.ringfence.Lease;
import dev.ringfence.Program;
import dev.ringfence.Ringfence;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of a provider, and what the token adds. */
final class RingfenceLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
  private static Program node;
  private static Ringfence client;
  private static RingfenceLockProvider provider;

  @BeforeAll
  static void start() throws Exception {
    node = Program.node();
    client = Ringfence.connect(node.url());
    provider = new RingfenceLockProvider(client);
  }

  @AfterAll
  static void stop() throws Exception {
    client.close();
    node.close();
  }

  @Override
  protected ExtensibleLockProvider getLockProvider() {
    return provider;
  }

  @Override
  protected void assertUnlocked(String name) {
    // The cluster may end a lease some time after it was over for its holder.
    assertDoesNotThrow(() -> Program.until(name + " is unlocked", () -> holders(name) == 0));
  }

  @Override
  protected void assertLocked(String name) {
    assertEquals(1, holders(name));
  }

  private static int holders(String name) {
    try {
      return client.holders("shedlock/" + name).size();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static LockConfiguration configuration(String name) {
    return new LockConfiguration(Instant.now(), name, Duration.ofMinutes(1), Duration.ZERO);
  }

  @Test
  void aTaskFindsItsToken() throws Exception {
    // ShedLock's own tests leave locks on theirs.
    ExecutorService thread = Executors.newSingleThreadExecutor();
    try {
      thread.submit(this::findsItsToken).get();
    } finally {
      thread.shutdown();
    }
  }

  private Void findsItsToken() throws Exception {
    DefaultLockingTaskExecutor executor = new DefaultLockingTaskExecutor(provider);
    List<Long> tokens = new ArrayList<>();
    executor.executeWithLock((Runnable) () -> tokens.add(RingfenceLockProvider.currentLease().token()), configuration("a"));
    executor.executeWithLock(
        (Runnable)
            () -> {
              LockExtender.extendActiveLock(Duration.ofMinutes(2), Duration.ZERO);
              LockExtender.extendActiveLock(Duration.ofMinutes(3), Duration.ZERO);
              tokens.add(RingfenceLockProvider.currentLease().token());
            },
        configuration("a"));
    assertTrue(tokens.get(1) > tokens.get(0), "tokens increase");
    assertThrows(IllegalStateException.class, RingfenceLockProvider::currentLease);
    return null;
  }

  @Test
  void whoeverExtendsOrUnlocksATaskItsLeaseIsThatOfItsThread() throws Exception {
    ExecutorService task = Executors.newSingleThreadExecutor();
    try (Ringfence other = Ringfence.connect(node.url())) {
      SimpleLock first = task.submit(() -> provider.lock(configuration("a/extended")).orElseThrow()).get();
      // As `KeepAliveLockProvider` does.
      SimpleLock extended = first.extend(Duration.ofMinutes(1), Duration.ZERO).orElseThrow();
      Lease lease = task.submit(RingfenceLockProvider::currentLease).get();
      assertEquals("shedlock/a%2Fextended", lease.keys().get(0));
      extended.unlock();
      assertEquals("none", task.submit(RingfenceLockProviderTest::current).get());

      SimpleLock lost = task.submit(() -> provider.lock(configuration("lost")).orElseThrow()).get();
      other.adopt(task.submit(RingfenceLockProvider::currentLease).get().leaseId()).release();
      assertEquals(Optional.empty(), lost.extend(Duration.ofMinutes(1), Duration.ZERO));
      assertEquals("none", task.submit(RingfenceLockProviderTest::current).get());
    } finally {
      task.shutdown();
    }
  }

  private static String current() {
    try {
      return RingfenceLockProvider.currentLease().keys().get(0);
    } catch (IllegalStateException none) {
      return "none";
    }
  }

  @Test
  void anInnerLockIsTheCurrentOne() {
    SimpleLock outer = provider.lock(configuration("outer")).orElseThrow();
    SimpleLock inner = provider.lock(configuration("inner")).orElseThrow();
    assertEquals("shedlock/inner", RingfenceLockProvider.currentLease().keys().get(0));
    inner.unlock();
    assertEquals("shedlock/outer", RingfenceLockProvider.currentLease().keys().get(0));
    outer.unlock();
    assertEquals(Optional.empty(), provider.lock(configuration("taken")).flatMap(taken -> provider.lock(configuration("taken"))));
  }
}
