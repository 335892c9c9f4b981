package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
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

  @Test
  void aRenewalWhoseAnswerStopsIsMadeElsewhereInTime() throws Exception {
    StubNode.Handler good =
        (method, path, body, out) -> {
          boolean isMany = path.equals("/v1/renew") || path.equals("/v1/batch");
          String alone = method.equals("PUT") ? StubNode.grant(path, 4_000) : "{}";
          StubNode.say(out, 200, isMany ? StubNode.results(body, 200, 4_000) : alone);
        };
    AtomicInteger renewals = new AtomicInteger();
    StubNode.Handler half =
        (method, path, body, out) -> {
          if (path.equals("/v1/renew")) {
            renewals.incrementAndGet();
            out.write("HTTP/1.1 200 x\r\ncontent-length: 500\r\n\r\n{".getBytes(StandardCharsets.US_ASCII));
          } else {
            good.handle(method, path, body, out);
          }
        };
    try (StubNode one = new StubNode(half);
        StubNode other = new StubNode(good);
        Ringfence client = Ringfence.connect(one.url(), other.url())) {
      Lease lease = client.lock("k").ttl(Duration.ofSeconds(4)).acquire();
      assertEquals(Optional.empty(), lease.awaitLoss(Duration.ofSeconds(6)));
      assertTrue(renewals.get() > 0);
      lease.intoId();
    }
  }

  @Test
  void aClientThatClosesIsNoErrorOfABlockThatEnds() throws Exception {
    CountDownLatch releases = new CountDownLatch(1);
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        StubNode.say(out, 201, StubNode.grant(path, 60_000));
      } else if (path.equals(Server.LIVEZ)) {
        StubNode.say(out, 200, "{}");
      } else {
        releases.countDown();
      }
    })) {
      Ringfence client = Ringfence.connect(node.url());
      Lease lease = client.lock("k").ttl(Duration.ofMinutes(1)).acquire();
      Future<?> ending = pool.submit(() -> lease.close());
      assertTrue(releases.await(60, TimeUnit.SECONDS));
      assertEquals(1, client.close(Duration.ZERO));
      ending.get(60, TimeUnit.SECONDS);
    }
  }

  @Test
  void anInterruptedThreadClosesBrieflyAndTheReleaseGoesOn() throws Exception {
    AtomicBoolean isBack = new AtomicBoolean();
    CountDownLatch released = new CountDownLatch(1);
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        StubNode.say(out, 201, StubNode.grant(path, 60_000));
      } else if (path.equals(Server.LIVEZ)) {
        StubNode.say(out, 200, "{}");
      } else if (isBack.get()) {
        released.countDown();
      }
    })) {
      Ringfence client = Ringfence.connect(node.url());
      client.lock("k").ttl(Duration.ofMinutes(1)).acquire();
      Thread.currentThread().interrupt();
      client.close(Duration.ofMinutes(1));
      isBack.set(true);
      assertTrue(Thread.interrupted());
      assertTrue(released.await(60, TimeUnit.SECONDS));
    }
  }

  @Test
  void aProblemIsToldInShortAndWithoutControlCharacters() throws Exception {
    String detail = "no\\u001b[31m\\nWARNING" + "y".repeat(100_000);
    String problem = "{\"type\":\"urn:ringfence:problem:bad\",\"status\":400,\"detail\":\"" + detail + "\"}";
    try (StubNode node = new StubNode((method, path, body, out) -> StubNode.say(out, 400, problem));
        Ringfence client = Ringfence.connect(node.url())) {
      RejectedException error = assertThrows(RejectedException.class, () -> client.lock("k").acquire());
      assertTrue(error.getMessage().startsWith("no?[31m?WARNINGyyy"), error.getMessage());
      assertEquals(1_024, error.getMessage().length());
    }
  }

  @Test
  void whoLeadsStandsAgainIfItsGrantEndsBeforeItWorks() throws Exception {
    AtomicInteger asked = new AtomicInteger();
    String revoked = "{\"type\":\"urn:ringfence:problem:lease-gone\",\"status\":410,\"reason\":\"revoked\"}";
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        boolean isFirst = asked.getAndIncrement() == 0;
        StubNode.say(out, isFirst ? 410 : 201, isFirst ? revoked : StubNode.grant(path, 60_000));
      } else {
        boolean isProbe = path.equals(Server.LIVEZ);
        StubNode.say(out, isProbe ? 200 : 204, isProbe ? "{}" : "");
      }
    });
        Ringfence client = Ringfence.connect(node.url())) {
      assertEquals(7L, client.lock("k").ttl(Duration.ofMinutes(1)).lead(Lease::token));
      assertEquals(2, asked.get());
    }
  }

  @Test
  void anAnswerThatNoNodeWroteIsNoRelease() throws Exception {
    AtomicInteger releases = new AtomicInteger();
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        StubNode.say(out, 201, StubNode.grant(path, 60_000));
      } else if (path.equals(Server.LIVEZ)) {
        StubNode.say(out, 200, "{}");
      } else if (releases.incrementAndGet() == 1) {
        out.write("HTTP/1.1 204 x\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
      } else {
        StubNode.say(out, 204, "");
      }
    });
        Ringfence client = Ringfence.connect(node.url())) {
      client.lock("k").ttl(Duration.ofMinutes(1)).acquire().release();
      assertEquals(2, releases.get());
    }
  }

  @Test
  void aGrantOfOtherKeysIsNone() throws Exception {
    try (StubNode node = new StubNode((method, path, body, out) -> {
      boolean isAcquire = method.equals("PUT");
      StubNode.say(out, isAcquire ? 201 : 200, isAcquire ? StubNode.grant(path, 60_000) : "{}");
    })) {
      Ringfence client = Ringfence.connect(node.url());
      assertThrows(UnknownException.class, () -> client.lock("k", "other").acquire());
      client.close(Duration.ZERO);
    }
  }

  @Test
  void aRenewalOfOtherKeysIsNone() throws Exception {
    AtomicBoolean isOld = new AtomicBoolean();
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        String grant = StubNode.grant(path, 3_000);
        StubNode.say(out, 201, isOld.get() ? grant.replace("in_ms\":3000", "in_ms\":1000") : grant);
      } else if (path.endsWith("/renew")) {
        String grants = path.equals("/v1/renew") ? StubNode.results(body, 200, 3_000) : StubNode.grant(path, 3_000);
        StubNode.say(out, 200, grants.replace("\"key\":\"k\"", "\"key\":\"other\""));
      } else {
        boolean isProbe = path.equals(Server.LIVEZ);
        StubNode.say(out, isProbe ? 200 : 204, isProbe ? "{}" : "");
      }
    });
        Ringfence client = Ringfence.connect(node.url())) {
      LockRequest lock = client.lock("k").ttl(Duration.ofSeconds(3));
      Lease lease = lock.acquire();
      assertThrows(TimedOutException.class, () -> lease.renew(Duration.ofMillis(300)));
      assertEquals(Optional.of(LossReason.UNCONFIRMED), lease.awaitLoss(Duration.ofSeconds(20)));
      isOld.set(true);
      assertThrows(TimedOutException.class, () -> lock.acquire(Duration.ofMillis(500)));
    }
  }

  @Test
  void aPutThatTookLongHadNoPlaceForThat() throws Exception {
    AtomicInteger asked = new AtomicInteger();
    String busy = "{\"type\":\"urn:ringfence:problem:rate-limited\",\"status\":429}";
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (path.equals(Server.LIVEZ)) {
        StubNode.say(out, 200, "{}");
      } else if (asked.getAndIncrement() > 0) {
        throw new IOException("it does not answer any more");
      } else {
        // The next PUT begins with a pause of as long as any outage is borne.
        String head = "HTTP/1.1 429 x\r\nretry-after: 5\r\ncontent-length: " + busy.length() + "\r\n\r\n";
        out.write((head + busy).getBytes(StandardCharsets.US_ASCII));
        out.flush();
      }
    })) {
      Ringfence client = Ringfence.connect(node.url());
      assertThrows(UnknownException.class, () -> client.lock("k").acquire(Duration.ofMinutes(1)));
      client.close(Duration.ZERO);
    }
  }

  @Test
  void anEmptyAnswerToABatchIsNoneToItsCalls() throws Exception {
    AtomicInteger alone = new AtomicInteger();
    try (StubNode node = new StubNode((method, path, body, out) -> {
      if (method.equals("PUT")) {
        StubNode.say(out, 201, StubNode.grant(path, 60_000));
      } else if (path.equals("/v1/batch") && !body.contains("release")) {
        StubNode.say(out, 200, StubNode.results(body, 201, 60_000));
      } else {
        alone.addAndGet(method.equals("DELETE") ? 1 : 0);
        boolean isProbe = path.equals(Server.LIVEZ);
        StubNode.say(out, isProbe ? 200 : 204, isProbe ? "{}" : "");
      }
    });
        Ringfence client = Ringfence.connect(node.url())) {
      List<Lease> leases = new ArrayList<>();
      for (int i = 0; i < 6; i++) {
        leases.add(client.lock("k").ttl(Duration.ofMinutes(1)).acquire());
      }
      List<Future<?>> releases = new ArrayList<>();
      leases.forEach(lease -> releases.add(pool.submit(() -> lease.release())));
      for (Future<?> release : releases) {
        release.get(60, TimeUnit.SECONDS);
      }
      assertEquals(6, alone.get());
    }
  }
}
