package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.spi.AbstractInterruptibleChannel;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

final class WorkerTest {
  @Test
  void whoHasLeftIsNotInterrupted() throws Exception {
    Thread self = Thread.currentThread();
    ExecutorService other = Executors.newSingleThreadExecutor();
    try {
      for (int turn = 0; turn < 5_000; turn++) {
        Worker worker = new Worker(self);
        var interrupting = other.submit(worker::interrupt);
        worker.leave();
        assertFalse(Thread.currentThread().isInterrupted(), "an interrupt was left");
        interrupting.get();
        assertFalse(Thread.currentThread().isInterrupted(), "an interrupt came after the end");
      }
    } finally {
      other.shutdown();
    }
  }

  @Test
  void anInterruptOfAnotherIsKept() {
    Worker worker = new Worker(Thread.currentThread());
    Thread.currentThread().interrupt();
    worker.leave();
    assertTrue(Thread.interrupted(), "it was not ours");
  }

  /** A channel that an interrupt closes. */
  private static final class Channel extends AbstractInterruptibleChannel {
    private final Runnable onClose;

    Channel(Runnable onClose) {
      this.onClose = onClose;
    }

    @Override
    protected void implCloseChannel() {
      onClose.run();
    }

    /** Waits until it is closed. */
    void block() throws IOException {
      begin();
      while (isOpen()) {
        // Once the flag is set, this returns at once.
        LockSupport.park(this);
      }
      end(true);
    }
  }

  @Test
  void aChannelWhoseCloseBlocksHoldsUpNoOtherLease() throws Exception {
    CountDownLatch isClosing = new CountDownLatch(1);
    CountDownLatch mayClose = new CountDownLatch(1);
    AtomicInteger renewals = new AtomicInteger();
    Hooks hooks =
        new Hooks() {
          @Override
          public void renewed(LeaseView lease) {
            renewals.addAndGet(lease.keys().contains("other") && isClosing.getCount() == 0 ? 1 : 0);
          }
        };
    ExecutorService worker = Executors.newSingleThreadExecutor();
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client(hooks);
        Lease other = client.lock("other").ttl(Duration.ofSeconds(3)).acquire()) {
      worker.submit(() -> blocks(client, () -> {
        isClosing.countDown();
        mayClose.await();
        return null;
      }));
      Program.until("it works", () -> !cluster.holders("k").isEmpty());
      cluster.revoke("k");
      Program.until(
          "the other is renewed",
          () -> {
            other.check();
            return renewals.get() > 2;
          });
      mayClose.countDown();
    } finally {
      worker.shutdown();
    }
  }

  @Test
  void aChannelWhoseCloseFailsLeavesItsWorkerFree() throws Exception {
    ExecutorService worker = Executors.newSingleThreadExecutor();
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Future<?> working = worker.submit(() -> blocks(client, () -> {
        throw new IllegalStateException("it cannot be closed");
      }));
      Program.until("it works", () -> !cluster.holders("k").isEmpty());
      cluster.revoke("k");
      Throwable why = assertThrows(ExecutionException.class, () -> working.get(60, TimeUnit.SECONDS)).getCause();
      assertTrue(why instanceof ClosedByInterruptException, why::toString);
    } finally {
      worker.shutdown();
    }
  }

  @Test
  void anInterruptWaitsForNoOther() throws Exception {
    Workers workers = new Workers();
    CountDownLatch mayEnd = new CountDownLatch(1);
    CountDownLatch last = new CountDownLatch(1);
    try {
      for (int i = 0; i < 100; i++) {
        workers.interrupt(() -> await(mayEnd));
      }
      workers.interrupt(last::countDown);
      assertTrue(last.await(60, TimeUnit.SECONDS), "it waits for channels of others");
    } finally {
      mayEnd.countDown();
      workers.end();
    }
  }

  @Test
  void aFlagThatAHookLeavesDoesNotReachTheNext() throws Exception {
    Workers workers = new Workers();
    CountDownLatch first = new CountDownLatch(1);
    BlockingQueue<Boolean> flags = new LinkedBlockingQueue<>();
    try {
      workers.hook(
          () -> {
            await(first);
            Thread.currentThread().interrupt();
          });
      workers.hook(() -> flags.add(Thread.currentThread().isInterrupted()));
      first.countDown();
      assertEquals(false, flags.poll(60, TimeUnit.SECONDS));
    } finally {
      workers.end();
    }
  }

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException stopped) {
      throw new IllegalStateException(stopped);
    }
  }

  private static Void blocks(Ringfence client, Callable<Void> onClose) throws Exception {
    try (Lease lease = client.lock("k").ttl(Duration.ofSeconds(3)).interruptOnLoss().acquire()) {
      new Channel(() -> {
        try {
          onClose.call();
        } catch (Exception error) {
          throw new IllegalStateException(error);
        }
      }).block();
    }
    return null;
  }

  @Test
  void anInterruptThatFollowsOursEndsTheRace() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Work<Boolean, InterruptedException> work =
          lease -> {
            cluster.revoke("leader");
            try {
              new CountDownLatch(1).await();
            } catch (InterruptedException lost) {
              // The program is told to stop while the work cleans up.
              Thread.currentThread().interrupt();
              throw lost;
            }
            return true;
          };
      AtomicInteger terms = new AtomicInteger();
      assertThrows(
          InterruptedException.class,
          () ->
              client.lock("leader").interruptOnLoss().lead(lease -> terms.incrementAndGet() > 1 || work.run(lease)));
      assertEquals(1, terms.get());
    }
  }

  /** How work may end once the loss has interrupted it. */
  private enum Ending {
    RETURNS,
    CHECKS,
    WRAPS,
    POLLS
  }

  @ParameterizedTest
  @EnumSource
  void anInterruptOfTheCallerEndsTheRaceHoweverTheWorkEnds(Ending ending) throws Exception {
    ExecutorService pool = Executors.newSingleThreadExecutor();
    CountDownLatch works = new CountDownLatch(1);
    AtomicInteger terms = new AtomicInteger();
    AtomicReference<Thread> caller = new AtomicReference<>();
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Work<Integer, Exception> work =
          lease -> {
            if (terms.incrementAndGet() > 1) {
              new CountDownLatch(1).await();
            }
            works.countDown();
            try {
              while (ending == Ending.POLLS && !Thread.currentThread().isInterrupted()) {
                Thread.onSpinWait();
              }
              new CountDownLatch(1).await();
            } catch (InterruptedException lost) {
              // Below.
            }
            caller.get().interrupt();
            if (ending == Ending.CHECKS) {
              lease.check();
            } else if (ending == Ending.WRAPS) {
              throw new IllegalStateException("its cleanup fails");
            }
            return 1;
          };
      Future<?> leading =
          pool.submit(
              () -> {
                caller.set(Thread.currentThread());
                return client.lock("leader").interruptOnLoss().lead(work);
              });
      works.await();
      cluster.revoke("leader");
      Throwable why = assertThrows(ExecutionException.class, () -> leading.get(60, TimeUnit.SECONDS)).getCause();
      assertTrue(why instanceof InterruptedException, why::toString);
    } finally {
      pool.shutdown();
    }
  }

  @Test
  void whatEndsDespiteAnInterruptKeepsTheFlag() throws Exception {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Thread caller = Thread.currentThread();
      Work<Integer, Exception> work =
          lease -> {
            caller.interrupt();
            assertThrows(InterruptedException.class, () -> new CountDownLatch(1).await());
            return 7;
          };
      assertEquals(7, client.lock("leader").interruptOnLoss().lead(work));
      assertTrue(Thread.interrupted());
    }
  }

  @Test
  void anErrorOfTheWorkReachesTheCaller() {
    try (FakeCluster cluster = new FakeCluster();
        Ringfence client = cluster.client()) {
      Work<Integer, RuntimeException> work =
          lease -> {
            throw new StackOverflowError("as if");
          };
      assertThrows(StackOverflowError.class, () -> client.lock("leader").interruptOnLoss().lead(work));
    }
  }

  @Test
  void theInterruptOfAnOuterLeaseIsKeptForIt() throws Exception {
    Worker outer = new Worker(Thread.currentThread());
    Worker inner = new Worker(Thread.currentThread());
    inner.interrupt();
    outer.interrupt();
    inner.leave();
    assertTrue(Thread.currentThread().isInterrupted(), "it was the outer's, too");
    outer.leave();
    assertFalse(Thread.currentThread().isInterrupted(), "nobody works any more");
    Worker next = new Worker(Thread.currentThread());
    next.interrupt();
    next.leave();
    assertFalse(Thread.currentThread().isInterrupted(), "those before have left");
  }

  @Test
  void whoLeavesWaitsForNoCodeOfTheUser() throws Exception {
    Semaphore lock = new Semaphore(1);
    CountDownLatch isInterrupting = new CountDownLatch(1);
    BlockingQueue<Boolean> flags = new LinkedBlockingQueue<>();
    ExecutorService other = Executors.newSingleThreadExecutor();
    Thread locked =
        new Thread(
            () -> {
              Worker worker = new Worker(Thread.currentThread());
              lock.acquireUninterruptibly();
              other.submit(worker::interrupt);
              while (isInterrupting.getCount() > 0) {
                Thread.onSpinWait();
              }
              worker.leave();
              flags.add(Thread.currentThread().isInterrupted());
              lock.release();
            }) {
          @Override
          public void interrupt() {
            super.interrupt();
            isInterrupting.countDown();
            lock.acquireUninterruptibly();
            lock.release();
          }
        };
    locked.setDaemon(true);
    locked.start();
    assertEquals(false, flags.poll(60, TimeUnit.SECONDS), "it waits for the lock that it has, or keeps the flag");
    other.shutdown();
  }

  @Test
  void aHandleThatIsDroppedAfterTheEndOfItsClientHasLeft() throws Exception {
    ExecutorService other = Executors.newSingleThreadExecutor();
    try (FakeCluster cluster = new FakeCluster()) {
      Ringfence client = cluster.client();
      client.lock("k").interruptOnLoss().acquire();
      Future<?> closing = other.submit(() -> client.close());
      assertThrows(InterruptedException.class, () -> new CountDownLatch(1).await());
      closing.get(60, TimeUnit.SECONDS);
      Program.until(
          "the next lease takes its own interrupt back",
          () -> {
            System.gc();
            Worker next = new Worker(Thread.currentThread());
            next.interrupt();
            next.leave();
            return !Thread.interrupted();
          });
    } finally {
      other.shutdown();
    }
  }

  @Test
  void whatFoundNoRoomForAThreadIsToldByTheEndOfTheClient() throws Exception {
    CountDownLatch isTold = new CountDownLatch(2);
    AtomicInteger tries = new AtomicInteger();
    try (FakeCluster cluster = new FakeCluster()) {
      Ringfence client = cluster.client();
      Predicate<Runnable> late = call -> tries.incrementAndGet() > 1 && client.engine().workers.interrupt(call);
      client.engine().teller.begin(call -> false, isTold::countDown);
      client.engine().teller.begin(late, isTold::countDown);
      client.close();
      assertTrue(isTold.await(60, TimeUnit.SECONDS));
    }
  }
}
