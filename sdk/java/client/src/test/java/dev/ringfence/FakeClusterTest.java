package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Filter;
import java.util.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class FakeClusterTest {
  private final FakeCluster cluster = new FakeCluster();
  private final Ringfence client = cluster.client();
  private final ExecutorService pool = Executors.newCachedThreadPool();

  @AfterEach
  void end() {
    client.close();
    cluster.close();
    pool.shutdown();
  }

  @Test
  void aLeaseIsRevoked() throws Exception {
    Lease lease = client.lock("a").acquire();
    cluster.revoke("a");
    assertEquals(Optional.of(LossReason.REVOKED), lease.lostReason());
    assertThrows(LostException.class, lease::close);
    assertThrows(NoSuchElementException.class, () -> cluster.expire("a"));
  }

  @Test
  void aConnectionHasTheTokenOfEachKey() throws Exception {
    try (Lease lease = client.lock("b c", "a").acquire()) {
      long token = lease.token();
      assertEquals("-c ringfence.may_claim=a=" + token + ",b%20c=" + token, lease.postgresOptions());
    }
    try (Lease older = client.lock(Claim.shared("a")).acquire();
        Lease younger = client.lock(Claim.shared("a")).acquire()) {
      older.check();
      assertThrows(InvalidException.class, younger::postgresOptions);
    }
  }

  @Test
  void aHandleThatIsDroppedLeavesALeaseThatWasAdopted() throws Exception {
    Lease first = client.lock("a").acquire();
    try (Lease adopted = client.adopt(first.leaseId())) {
      Held held = first.held();
      first = null;
      Program.until(
          "it is collected",
          () -> {
            System.gc();
            return held.isDropped;
          });
      adopted.renew();
      assertEquals(1, cluster.holders("a").size());
    }
  }

  @Test
  void aHookThatFailsAndALogThatFailsEndNoOtherHook() throws Exception {
    AtomicInteger calls = new AtomicInteger();
    Hooks failing =
        new Hooks() {
          @Override
          public void granted(LeaseView lease, Duration time) {
            calls.incrementAndGet();
            throw new IllegalStateException("the hook fails");
          }
        };
    Logger logger = Logger.getLogger("dev.ringfence");
    Filter full =
        line -> {
          throw new IllegalStateException("the log fails");
        };
    logger.setFilter(full);
    try (Ringfence hooked = cluster.client(failing)) {
      hooked.lock("a").acquire().close();
      Program.until("the first was called", () -> calls.get() == 1);
      hooked.lock("a").acquire().close();
      Program.until("the second was called", () -> calls.get() == 2);
    } finally {
      logger.setFilter(null);
    }
  }

  @Test
  void timeEndsWhatIsNotRenewed() throws Exception {
    Lease lease = client.lock("a").withoutRenewal().acquire();
    cluster.advance(Duration.ofSeconds(14));
    assertEquals(LeaseState.HELD, lease.state());
    cluster.advance(Duration.ofSeconds(2));
    assertEquals(Optional.of(LossReason.UNCONFIRMED), lease.lostReason());
    assertTrue(cluster.holders("a").isEmpty());
    assertThrows(LostException.class, lease::close);
  }

  @Test
  void closeReleasesALeaseThatItsHolderGaveUpByTheClock() throws Exception {
    Lease lease = client.lock("a").ttl(Duration.ofHours(1)).maxHold(Duration.ofSeconds(10)).acquire();
    cluster.advance(Duration.ofSeconds(11));
    assertEquals(Optional.of(LossReason.MAX_HOLD), lease.lostReason());
    client.close();
    assertTrue(cluster.holders("a").isEmpty());
  }

  @Test
  void waitersComeInTheirOrder() throws Exception {
    Lease first = client.lock("a").acquire();
    assertTrue(client.lock("a").tryAcquire().isEmpty());
    Future<Lease> second = pool.submit(() -> client.lock("a").acquire());
    Program.until("the second waits", () -> cluster.waiters("a") == 1);
    Future<Lease> third = pool.submit(() -> client.lock(Claim.shared("a")).acquire());
    Program.until("the third waits", () -> cluster.waiters("a") == 2);
    first.close();
    assertTrue(second.get().token() > first.token());
    assertEquals(1, cluster.waiters("a"));
    second.get().close();
    try (Lease last = third.get();
        Lease beside = client.lock(Claim.shared("a")).acquire()) {
      assertEquals(last.token(), beside.fence());
      assertEquals(2, cluster.holders("a").size());
      assertThrows(HeldException.class, () -> client.lock("a").waitAtMost(Duration.ZERO).acquire());
      assertTrue(client.lock(Claim.limited("a", 2)).tryAcquire().isEmpty());
    }
    assertTrue(client.holders("a").isEmpty());
  }

  @Test
  void anOutageIsToldWithinTheBound() throws Exception {
    cluster.leave();
    assertTrue(client.lock("a").tryAcquire(Duration.ofMillis(300)).isEmpty());
    cluster.comeBack();
    client.lock("a").acquire().close();
  }

  @Test
  void aWaitThatIsOverLeavesNoPlace() throws Exception {
    try (Lease held = client.lock("a").acquire()) {
      assertTrue(client.lock("a").tryAcquire(Duration.ofMillis(300)).isEmpty());
      Program.until("nobody waits", () -> cluster.waiters("a") == 0);
      held.check();
    }
  }
}
