package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Who is responsible for a lease, if several handles, releases and adoptions have its id. */
final class AdoptionTest {
  private static final Duration LONG = Duration.ofHours(1);
  private final ExecutorService pool = Executors.newCachedThreadPool();
  private final CountDownLatch mayRelease = new CountDownLatch(1);
  private final CountDownLatch mayRenew = new CountDownLatch(1);
  private final CountDownLatch renewals = new CountDownLatch(1);
  /** How long a renewal lets a lease live. */
  private volatile long renewedMs = 3_600_000;

  private final Queue<String> releases = new ConcurrentLinkedQueue<>();
  private StubNode node;
  private Ringfence client;

  @BeforeEach
  void begin() throws Exception {
    node = new StubNode(this::answer);
    client = Ringfence.connect(node.url());
  }

  @AfterEach
  void end() throws Exception {
    mayRelease.countDown();
    mayRenew.countDown();
    client.close();
    node.close();
    pool.shutdownNow();
  }

  private void answer(String method, String path, String body, OutputStream out)
      throws IOException, InterruptedException {
    if (method.equals("PUT")) {
      StubNode.say(out, 201, StubNode.grant(path, 3_600_000));
    } else if (body.contains("\"acquire\"")) {
      StubNode.say(out, 200, StubNode.results(body, 201, 3_600_000));
    } else if (path.equals(Server.LIVEZ)) {
      StubNode.say(out, 200, "{}");
    } else if (method.equals("DELETE") || path.equals("/v1/batch")) {
      releases.addAll(StubNode.ids(path + body));
      mayRelease.await();
      boolean isAlone = method.equals("DELETE");
      StubNode.say(out, isAlone ? 204 : 200, isAlone ? "" : StubNode.results(body, 204, 3_600_000));
    } else {
      // The one renewal of a lease that is held for longer changes its ttl.
      renewals.countDown();
      if (!body.contains("ttl_ms")) {
        mayRenew.await();
      }
      StubNode.say(out, 200, StubNode.grant(path, renewedMs));
    }
  }

  private Lease acquired() throws Exception {
    return client.lock("k").ttl(LONG).acquire();
  }

  private void adoptionIsRefused(String leaseId) {
    assertEquals(LossReason.RELEASED, assertThrows(LostException.class, () -> client.adopt(leaseId)).reason());
  }

  private static Throwable failureOf(Future<?> call) {
    return assertThrows(ExecutionException.class, () -> call.get(60, TimeUnit.SECONDS)).getCause();
  }

  @Test
  void nobodyAdoptsWhatIsBeingReleased() throws Exception {
    mayRenew.countDown();
    Lease lease = acquired();
    assertThrows(TimedOutException.class, () -> lease.release(Duration.ofMillis(100)));
    adoptionIsRefused(lease.leaseId());
  }

  @Test
  void nobodyAdoptsWhatIsHeldForAWhileAfterItsRelease() throws Exception {
    mayRenew.countDown();
    Lease lease = acquired();
    lease.holdAtLeast(LONG);
    lease.release();
    adoptionIsRefused(lease.leaseId());
  }

  @Test
  void aReleaseDuringAnAdoptionEndsIt() throws Exception {
    mayRelease.countDown();
    Lease lease = acquired();
    Future<Lease> adopting = pool.submit(() -> client.adopt(lease.leaseId()));
    assertTrue(renewals.await(60, TimeUnit.SECONDS));
    lease.release();
    mayRenew.countDown();
    Throwable why = failureOf(adopting);
    assertTrue(why instanceof LostException lost && lost.reason() == LossReason.RELEASED, why::toString);
  }

  @Test
  void anAnswerThatComesTooLateTakesTheLeaseFromNobody() throws Exception {
    mayRelease.countDown();
    renewedMs = 50;
    Lease lease = acquired();
    Future<Lease> adopting = pool.submit(() -> client.adopt(lease.leaseId()));
    assertTrue(renewals.await(60, TimeUnit.SECONDS));
    Thread.sleep(100);
    mayRenew.countDown();
    Throwable why = failureOf(adopting);
    assertTrue(why instanceof LostException lost && lost.reason() == LossReason.UNCONFIRMED, why::toString);
    lease.check();
  }

  @Test
  void anAdoptionTakesTheLeaseFromOtherHandles() throws Exception {
    mayRelease.countDown();
    mayRenew.countDown();
    BlockingQueue<Loss> told = new LinkedBlockingQueue<>();
    Lease first = client.lock("k").ttl(LONG).onLost(told::add).acquire();
    Lease second = client.adopt(first.leaseId());
    assertEquals(LossReason.UNCONFIRMED, told.take().reason());
    assertThrows(LostException.class, first::check);
    assertThrows(LostException.class, first::release);
    assertThrows(LostException.class, first::intoId);
    Lease third = client.adopt(first.leaseId());
    assertThrows(LostException.class, second::close);
    third.check();
    assertEquals(0, releases.size(), "another handle has released it");
    third.release();
    assertEquals(1, releases.size());
  }

  @Test
  void aHandleThatIsDroppedDuringAnAdoptionLeavesTheLease() throws Exception {
    mayRelease.countDown();
    Future<Lease> adopting = adoptingADropped(new ArrayList<>());
    mayRenew.countDown();
    try (Lease adopted = adopting.get(60, TimeUnit.SECONDS)) {
      adopted.check();
      assertEquals(0, releases.size(), "the dropped handle has released it");
    }
    client.close();
    assertEquals(1, releases.size());
  }

  @Test
  void aDroppedHandleIsReleasedIfTheAdoptionFails() throws Exception {
    mayRelease.countDown();
    List<Thread> adopter = new ArrayList<>();
    Future<Lease> adopting = adoptingADropped(adopter);
    adopter.get(0).interrupt();
    Throwable why = failureOf(adopting);
    assertTrue(why instanceof InterruptedException, why::toString);
    Program.until("the dropped handle releases it", () -> releases.size() == 1);
  }

  private Future<Lease> adoptingADropped(List<Thread> adopter) throws Exception {
    Held held = acquired().held();
    Future<Lease> adopting =
        pool.submit(
            () -> {
              adopter.add(Thread.currentThread());
              return client.adopt(held.leaseId);
            });
    assertTrue(renewals.await(60, TimeUnit.SECONDS));
    Program.until(
        "it is collected",
        () -> {
          System.gc();
          return held.isDropped;
        });
    return adopting;
  }

  @Test
  void noIdIsGivenOutOfALeaseThatIsBeingReleased() throws Exception {
    mayRelease.countDown();
    List<Lease> leases = new ArrayList<>();
    for (int i = 0; i < 2_000; i++) {
      leases.add(acquired());
    }
    Future<?> closing = pool.submit(() -> client.close(LONG));
    while (leases.get(0).state() == LeaseState.HELD) {
      Thread.onSpinWait();
    }
    Set<String> left = new HashSet<>();
    for (int i = leases.size() - 1; i >= 0; i--) {
      try {
        left.add(leases.get(i).intoId());
      } catch (LostException released) {
        // Then `close` was faster.
      }
    }
    closing.get(60, TimeUnit.SECONDS);
    left.retainAll(releases);
    assertEquals(Set.of(), left, "ids were given out of what is released");
  }
}
