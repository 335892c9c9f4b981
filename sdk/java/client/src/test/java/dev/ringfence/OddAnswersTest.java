package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Answers that no node gives, but something in between, or one that fails. */
final class OddAnswersTest {
  private final ExecutorService pool = Executors.newCachedThreadPool();

  @AfterEach
  void end() {
    pool.shutdownNow();
  }

  @Test
  void anErrorInASharedRequestReachesEachCall() throws Exception {
    Workers workers = new Workers();
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (path.equals(Server.LIVEZ)) {
        throw new IOException("it does not live");
      }
    })) {
      Url url = Url.parse(node.url());
      Server server = new Server(url, new Names(workers), workers, null, null, Clock.SYSTEM);
      Request request = new Request("DELETE", "/v1/leases/1", "", "{\"release\":{}}", 0, Request.Way.SHARED);
      List<Future<?>> calls = new ArrayList<>();
      for (int i = 0; i < 5; i++) {
        calls.add(
            pool.submit(
                () ->
                    server.batcher.send(
                        request,
                        TimeUnit.MINUTES.toNanos(1),
                        () -> {
                          throw new OutOfMemoryError("as if");
                        },
                        Patience.endless())));
      }
      for (Future<?> call : calls) {
        Throwable why = assertThrows(ExecutionException.class, () -> call.get(60, TimeUnit.SECONDS)).getCause();
        assertTrue(why instanceof NoAnswer, why::toString);
      }
    } finally {
      workers.end();
    }
  }
}
