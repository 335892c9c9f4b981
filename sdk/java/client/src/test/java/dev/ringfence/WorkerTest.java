package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.junit.jupiter.api.Test;

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
}
