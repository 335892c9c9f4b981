package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What the conformance suite does not see: threads, and clocks. */
final class LeaseTest {
  private static final Duration LONG = Duration.ofMinutes(1);
  private static Program node;

  @BeforeAll
  static void start() throws Exception {
    node = Program.node();
  }

  @AfterAll
  static void stop() throws Exception {
    node.close();
  }

  private static String key() {
    return "test/" + UUID.randomUUID();
  }

  /** A client whose clock is so far ahead. */
  private static Ringfence ahead(AtomicLong nanos) {
    return Ringfence.builder(node.url()).clock(() -> Clock.SYSTEM.now().plus(nanos.get())).connect();
  }

  @Test
  void aLossInterruptsItsWorkerAndNotTheNextTaskOfThePool() throws Exception {
    AtomicLong nanos = new AtomicLong();
    ExecutorService pool = Executors.newSingleThreadExecutor();
    try (Ringfence client = ahead(nanos)) {
      BlockingQueue<Lease> leases = new LinkedBlockingQueue<>();
      Callable<Boolean> work =
          () -> {
            Lease lease = client.lock(key()).interruptOnLoss().acquire();
            leases.add(lease);
            boolean wasInterrupted = false;
            try {
              Thread.sleep(LONG.toMillis());
            } catch (InterruptedException stopped) {
              wasInterrupted = true;
            }
            assertThrows(LostException.class, lease::close);
            return wasInterrupted;
          };
      Future<Boolean> working = pool.submit(work);
      leases.take();
      nanos.addAndGet(LONG.toNanos());
      assertTrue(working.get(60, TimeUnit.SECONDS));
      assertFalse(pool.submit(() -> Thread.currentThread().isInterrupted()).get());
    } finally {
      pool.shutdownNow();
    }
  }

  @Test
  void aThreadThatIsInterruptedCanReleaseAndKeepsTheFlag() throws Exception {
    String key = key();
    try (Ringfence client = Ringfence.connect(node.url())) {
      Lease lease = client.lock(key).acquire();
      Thread.currentThread().interrupt();
      lease.close();
      assertTrue(Thread.interrupted());
      Program.until("it is free", () -> client.holders(key).isEmpty());
      Thread.currentThread().interrupt();
      assertThrows(InterruptedException.class, () -> client.lock(key).acquire());
      assertFalse(Thread.currentThread().isInterrupted());
    }
  }

  @Test
  void anyThreadMayReleaseAndOneDoes() throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(8);
    try (Ringfence client = Ringfence.connect(node.url())) {
      Lease lease = client.lock(key()).acquire();
      List<Future<?>> releasing = new ArrayList<>();
      for (int i = 0; i < 8; i++) {
        releasing.add(pool.submit(() -> lease.release()));
      }
      for (Future<?> one : releasing) {
        one.get();
      }
      assertEquals(LeaseState.RELEASED, lease.state());
    } finally {
      pool.shutdown();
    }
  }

  @Test
  void aCallbackIsToldOnceOfALoss() throws Exception {
    AtomicLong nanos = new AtomicLong();
    try (Ringfence client = ahead(nanos)) {
      BlockingQueue<Loss> told = new LinkedBlockingQueue<>();
      Lease lease = client.lock(key()).onLost(told::add).acquire();
      nanos.addAndGet(LONG.toNanos());
      assertEquals(LeaseState.LOST, lease.state());
      assertEquals(Duration.ZERO, lease.remaining());
      Loss loss = told.take();
      assertEquals(new Loss(lease.keys(), lease.token(), LossReason.UNCONFIRMED), loss);
      assertThrows(LostException.class, lease::headers);
      assertThrows(LostException.class, lease::release);
      assertTrue(told.isEmpty());
    }
  }

  private static int waiters(Ringfence client, String key) {
    return assertThrows(HeldException.class, () -> client.lock(key).waitAtMost(Duration.ZERO).acquire()).waiters();
  }

  @Test
  void closeEndsWhatWaits() throws Exception {
    String key = key();
    ExecutorService pool = Executors.newSingleThreadExecutor();
    try (Ringfence holder = Ringfence.connect(node.url());
        Lease held = holder.lock(key).acquire()) {
      Ringfence client = Ringfence.connect(node.url());
      AtomicBoolean wasClosed = new AtomicBoolean();
      Future<?> waiting =
          pool.submit(
              () -> {
                try (Lease never = client.lock(key).acquire()) {
                  throw new AssertionError("two hold it: " + never);
                } catch (ClosedException closed) {
                  wasClosed.set(true);
                }
                return null;
              });
      Program.until("it waits", () -> waiters(holder, key) == 1);
      held.check();
      assertEquals(0, client.close(LONG));
      waiting.get(60, TimeUnit.SECONDS);
      assertTrue(wasClosed.get());
    } finally {
      pool.shutdown();
    }
  }

  @Test
  void aLeaseIsLeftToAnotherClient() throws Exception {
    String key = key();
    try (Ringfence one = Ringfence.connect(node.url());
        Ringfence other = Ringfence.connect(node.url())) {
      Lease left = one.lock(key).acquire();
      String id = left.intoId();
      one.close();
      try (Lease adopted = other.adopt(id)) {
        assertEquals(left.token(), adopted.token());
        adopted.renewFor(Duration.ofSeconds(30), LONG);
      }
      assertTrue(other.holders(key).isEmpty());
    }
  }
}
