package dev.ringfence;

import java.io.IOException;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BooleanSupplier;

/**
 * HTTP to one node, over connections that are reused.
 *
 * <p>It is not made of {@code java.net.http}: that does not say whether anything of a request was sent, which separates <em>not done</em>
 * from <em>maybe done</em>; it repeats some requests by itself; and it does not let a connection be closed so that the kernel sends
 * nothing more. An abandoned request closes its connection at once, so that the node notices that its client is gone, and its answer
 * reaches nobody else.
 *
 * <p>A machine that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a request
 * that waits, be it for 30 s in the cluster's queue, has the node asked for a sign of life on another connection:
 *
 * <pre>
 *     sent ── 300 ms without a response ──▶ GET /livez ── answered ──▶ 1 s ──▶ GET /livez ── …
 *                                            └─ not within 1.5 s ──▶ the request is broken, and repeated elsewhere
 * </pre>
 *
 * <p>Its answer says that all threads of the node run. A response to another request says nothing of the thread that has this one.
 *
 * <p>Whoever has a place in the queue leaves only for another node: the cluster takes the place away soon after the connection is
 * closed. So a wait asks once more, after a random pause, as a busy leader may be late with thousands of waiters; and when it goes on
 * elsewhere, its connection stays open until that node has answered.
 */
final class Server {
  static final String LIVEZ = "/livez";
  private static final long CONNECT_WITHIN = 1_000 * Checks.MS;
  private static final long PROBE_AFTER = 300 * Checks.MS;
  private static final long PROBE_INTERVAL = 1_000 * Checks.MS;
  private static final long ANSWERS_WITHIN = 1_500 * Checks.MS;
  /** How late a busy leader may be. */
  private static final long LATE = 500 * Checks.MS;

  private static final long BODY_WITHIN = 5_000 * Checks.MS;
  private static final int MAX_IDLE = 64;

  final Url url;
  final Batcher batcher;
  private final Names names;
  private final Workers workers;
  private final Dial dial;
  private final String credential;
  private final Clock clock;
  private final Deque<Connection> idle = new ConcurrentLinkedDeque<>();
  private final Deque<Connection> idleRenewals = new ConcurrentLinkedDeque<>();
  private final Set<Exchange> open = ConcurrentHashMap.newKeySet();
  private volatile boolean isClosed;
  /** When a probe was answered last. */
  private volatile long heardAt = -1;

  private CompletableFuture<Response> probing;

  Server(Url url, Names names, Workers workers, Tls tls, String credential, Clock clock) {
    this.url = url;
    this.names = names;
    this.workers = workers;
    this.dial = new Dial(url, names, tls);
    // Over a plain connection anybody could read it.
    this.credential = url.isHttps() ? credential : null;
    this.clock = clock;
    this.batcher = new Batcher(this, workers);
  }

  /**
   * Sends a request and reads the whole response, within so many nanoseconds of being connected. If the node falls silent, and there
   * is another, it gives up earlier.
   */
  Response send(Request request, long nanos, BooleanSupplier hasAnother, Patience patience)
      throws NoAnswer, InterruptedException {
    Exchange exchange = begin(request);
    Exchange left = null;
    try {
      watch(exchange, nanos, hasAnother, request.way() == Request.Way.WAIT, patience);
      return got(exchange.result);
    } catch (NoAnswer.Left wait) {
      left = wait.open;
      throw wait;
    } finally {
      if (left == null) {
        exchange.abort();
      }
    }
  }

  /** Asks whether it lives, at most once at a time. */
  Response probe(Patience patience) throws NoAnswer, InterruptedException {
    CompletableFuture<Response> asked = probing();
    while (!patience.await(asked, ANSWERS_WITHIN)) {
      // It ends by itself.
    }
    return got(asked);
  }

  /** Closes its connections, and breaks what is under way. */
  void close() {
    isClosed = true;
    open.forEach(Exchange::abort);
    for (Deque<Connection> some : List.of(idle, idleRenewals)) {
      for (Connection one = some.poll(); one != null; one = some.poll()) {
        one.close();
      }
    }
  }

  private Exchange begin(Request request) throws NoAnswer.NotSent {
    Exchange exchange = new Exchange(this, request);
    open.add(exchange);
    if (isClosed || !workers.begin(exchange)) {
      open.remove(exchange);
      throw new NoAnswer.NotSent(url + (isClosed ? ": the client is closed" : ": there is no room for another thread"));
    }
    return exchange;
  }

  private static Response got(CompletableFuture<Response> result) throws NoAnswer {
    try {
      return result.join();
    } catch (CompletionException error) {
      if (error.getCause() instanceof NoAnswer known) {
        throw known;
      }
      throw new NoAnswer.Broken(String.valueOf(error.getCause()));
    }
  }

  /** Returns once the exchange has ended. Fails if it takes too long. */
  private void watch(Exchange exchange, long nanos, BooleanSupplier hasAnother, boolean waits, Patience patience)
      throws NoAnswer, InterruptedException {
    long begun = Clock.nanos();
    long connectBy = begun + Math.min(nanos, CONNECT_WITHIN);
    long asked = begun - PROBE_INTERVAL;
    while (!exchange.result.isDone()) {
      long now = Clock.nanos();
      long sent = exchange.sentAt;
      if (sent < 0) {
        if (now >= connectBy) {
          throw new NoAnswer.NotSent(url + ": not connected within " + Text.seconds(connectBy - begun));
        }
        patience.await(exchange.result, Math.min(PROBE_AFTER, connectBy - now));
        continue;
      }
      long deadline = deadline(exchange, nanos);
      if (now >= deadline) {
        throw new NoAnswer.Broken(url + ": no response within " + Text.seconds(nanos));
      }
      long due = heardAt > sent ? heardAt + PROBE_INTERVAL : sent + PROBE_AFTER;
      due = Math.max(due, asked + PROBE_INTERVAL);
      if (now < due) {
        patience.await(exchange.result, Math.min(due, deadline) - now);
        continue;
      }
      asked = now;
      if (answers(exchange, patience) || !hasAnother.getAsBoolean()) {
        continue;
      }
      if (!waits) {
        throw new NoAnswer.Broken(url + ": it does not answer");
      }
      patience.await(exchange.result, ThreadLocalRandom.current().nextLong(LATE));
      if (!exchange.result.isDone() && !answers(exchange, patience)) {
        throw new NoAnswer.Left(url + ": it does not answer", exchange);
      }
    }
  }

  /** Until when its whole response has to be there. A long listing may take a while longer: no lease hangs on it. */
  private static long deadline(Exchange exchange, long nanos) {
    long whole = exchange.sentAt + nanos;
    if (exchange.headAt < 0) {
      return whole;
    }
    long body = exchange.headAt + BODY_WITHIN;
    return exchange.request.isReading() ? Math.max(whole, body) : Math.min(whole, body);
  }

  /** Whether it gives a sign of life, or the response of this exchange. */
  private boolean answers(Exchange exchange, Patience patience) throws InterruptedException {
    CompletableFuture<Response> probe = probing();
    while (!patience.await(CompletableFuture.anyOf(exchange.result, probe), ANSWERS_WITHIN)) {
      // It ends by itself.
    }
    return exchange.result.isDone() || !probe.isCompletedExceptionally();
  }

  private synchronized CompletableFuture<Response> probing() {
    if (probing == null || probing.isDone()) {
      probing = new CompletableFuture<>();
      probe(probing);
    }
    return probing;
  }

  private void probe(CompletableFuture<Response> told) {
    Exchange exchange;
    try {
      exchange = begin(Request.of("GET", LIVEZ, ""));
    } catch (NoAnswer.NotSent error) {
      told.completeExceptionally(error);
      return;
    }
    var bound = workers.later(ANSWERS_WITHIN, exchange::abort);
    if (bound == null) {
      exchange.abort();
    }
    exchange.result.whenComplete(
        (response, error) -> {
          if (bound != null) {
            bound.cancel(false);
          }
          judge(told, response, error);
        });
  }

  private void judge(CompletableFuture<Response> told, Response response, Throwable error) {
    if (response == null) {
      boolean isUnsent = error instanceof NoAnswer.NotSent;
      told.completeExceptionally(isUnsent ? error : new NoAnswer.NotSent(url + ": it does not answer"));
      return;
    }
    // A node without room for another connection does not say of which cluster it is. One that hangs does.
    boolean hasNoRoom = response.cluster() == null && response.problem() != null;
    if (response.status() >= 500 && !hasNoRoom) {
      told.completeExceptionally(new NoAnswer.NotSent(url + ": " + response.status() + " of a probe"));
    } else {
      heardAt = Clock.nanos();
      told.complete(response);
    }
  }

  byte[] encode(Request request) {
    return request.encode(url.authority(), credential);
  }

  Moment now() {
    return clock.now();
  }

  void failed() {
    names.forget(url.host());
  }

  void ended(Exchange exchange) {
    open.remove(exchange);
  }

  /** A new connection. */
  Connection connect(Exchange exchange) throws NoAnswer.NotSent {
    return dial.connect(exchange);
  }

  /** An idle connection that still works. */
  Connection idle(Request.Way way, Exchange exchange) throws IOException {
    Deque<Connection> some = way == Request.Way.RENEWAL ? idleRenewals : idle;
    for (Connection found = some.poll(); found != null; found = some.poll()) {
      if (found.isUsable()) {
        exchange.opens(found.channel());
        return found;
      }
      found.close();
    }
    return null;
  }

  /** The response was read in full, so another request may use the connection, unless its exchange was aborted meanwhile. */
  void keep(Connection connection, Response response, Request.Way way, boolean isAborted) {
    Deque<Connection> some = way == Request.Way.RENEWAL ? idleRenewals : idle;
    if (isAborted || !response.keepsAlive() || some.size() >= MAX_IDLE) {
      connection.close();
      return;
    }
    connection.rest();
    some.push(connection);
    if (isClosed) {
      close();
    }
  }
}
