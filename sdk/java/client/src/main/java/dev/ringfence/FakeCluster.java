package dev.ringfence;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A cluster in memory, for tests of programs that use the client: no other program is needed.
 *
 * <pre>{@code
 * try (FakeCluster cluster = new FakeCluster();
 *     Ringfence client = cluster.client();
 *     Lease lease = client.lock("accounts/42").acquire()) {
 *   cluster.revoke("accounts/42");
 *   assertEquals(LossReason.REVOKED, lease.lostReason().get());
 * }
 * }</pre>
 *
 * <p>It answers on a port of the loopback interface as a node does, so the whole client runs. It grants by the rules of a real one, and
 * loses everything when it ends. Not in it: TLS, rights, limits, watches, and the administration of a cluster.
 */
public final class FakeCluster implements AutoCloseable {
  private static final String LEASES = "/v1/leases/";
  private static final Duration LEARNS_WITHIN = Duration.ofSeconds(5);

  private final FakeTable table = new FakeTable();
  private final String id = UUID.randomUUID().toString();
  private final AtomicLong ahead = new AtomicLong();
  private final List<Ringfence> clients = new CopyOnWriteArrayList<>();
  private final Set<Socket> connections = ConcurrentHashMap.newKeySet();
  private final ServerSocket server;
  private volatile boolean isAway;

  /** Starts one. */
  public FakeCluster() {
    try {
      server = new ServerSocket(0, 0, InetAddress.getLoopbackAddress());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    begin(this::accept);
  }

  /**
   * Where it is. A client that is made with this alone does not see {@link #advance}.
   *
   * @return its URL
   */
  public String url() {
    return "http://127.0.0.1:" + server.getLocalPort();
  }

  /**
   * A client whose clock goes with {@link #advance}. Whoever makes it closes it.
   *
   * @return the client
   */
  public Ringfence client() {
    return client(Ringfence.builder(url()));
  }

  /**
   * The same, with hooks.
   *
   * @param hooks they are told what becomes of leases
   * @return the client
   */
  public Ringfence client(Hooks hooks) {
    return client(Ringfence.builder(url()).hooks(hooks));
  }

  private Ringfence client(Ringfence.Builder builder) {
    Ringfence client = builder.clock(() -> Clock.SYSTEM.now().plus(ahead.get())).connect();
    clients.add(client);
    return client;
  }

  /**
   * Moves the time, as if all programs had been paused for so long: what was not renewed in time has ended. Clients then renew what is
   * due, in the background.
   *
   * @param time how far
   */
  public void advance(Duration time) {
    ahead.addAndGet(Checks.nanos("time", time));
    synchronized (this) {
      look();
    }
    clients.forEach(client -> client.engine().keeper.wake());
  }

  /**
   * Ends the leases that hold a key, as an operator does. The clients of this cluster have learned of it when this returns.
   *
   * @param key the key
   * @throws NoSuchElementException if nobody holds it
   */
  public void revoke(String key) {
    end(key, "revoked");
  }

  /**
   * Ends the leases that hold a key, as if nothing had renewed them in time. The clients of this cluster have learned of it when this
   * returns.
   *
   * @param key the key
   * @throws NoSuchElementException if nobody holds it
   */
  public void expire(String key) {
    end(key, "expired");
  }

  private void end(String key, String how) {
    List<Long> tokens;
    synchronized (this) {
      look();
      tokens = table.endAll(key, how);
      notifyAll();
    }
    if (tokens.isEmpty()) {
      throw new NoSuchElementException("nobody holds " + Text.quoted(key));
    }
    // They would learn of it by their next renewal, after a third of the ttl.
    for (Ringfence client : clients) {
      Engine engine = client.engine();
      for (Held held : engine.keeper.leases()) {
        if (tokens.contains(held.token)) {
          learn(engine, held);
        }
      }
    }
  }

  private static void learn(Engine engine, Held held) {
    try {
      engine.renew(held, null, Patience.of(LEARNS_WITHIN.toNanos()));
    } catch (RingfenceException lost) {
      // That is the news.
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** Nobody reaches the cluster from now on: calls fail after 5 s, and leases run out. */
  public void leave() {
    isAway = true;
    connections.forEach(FakeCluster::close);
  }

  /** Everybody reaches it again. */
  public void comeBack() {
    isAway = false;
  }

  /**
   * Who holds a key.
   *
   * @param key the key
   * @return its holders: none if it is free
   */
  public synchronized List<Blocker> holders(String key) {
    look();
    return Blocker.read(table.view(key).get("holders"), key);
  }

  /**
   * How many wait for a key.
   *
   * @param key the key
   * @return the number of waiters
   */
  public synchronized int waiters(String key) {
    look();
    return ((List<?>) table.view(key).get("waiters")).size();
  }

  /** Ends it. */
  @Override
  public void close() {
    leave();
    try {
      server.close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    synchronized (this) {
      notifyAll();
    }
  }

  private long nowMs() {
    return (Clock.nanos() + ahead.get()) / Checks.MS;
  }

  /** Does what is due. */
  private void look() {
    table.run(nowMs());
    notifyAll();
  }

  private static void begin(Runnable work) {
    Thread thread = new Thread(work, "ringfence-fake");
    thread.setDaemon(true);
    thread.start();
  }

  private void accept() {
    while (!server.isClosed()) {
      try {
        Socket connection = server.accept();
        connections.add(connection);
        if (isAway) {
          close(connection);
        } else {
          begin(() -> serve(connection));
        }
      } catch (IOException closed) {
        return;
      }
    }
  }

  private static void close(Socket connection) {
    try {
      connection.close();
    } catch (IOException ignored) {
      // It is closed.
    }
  }

  private void serve(Socket connection) {
    try (connection) {
      BufferedReader in =
          new BufferedReader(new InputStreamReader(connection.getInputStream(), StandardCharsets.ISO_8859_1));
      for (String first = in.readLine(); first != null && !isAway; first = in.readLine()) {
        int length = 0;
        for (String line = in.readLine(); line != null && !line.isEmpty(); line = in.readLine()) {
          if (line.startsWith("content-length: ")) {
            length = Integer.parseInt(line.substring("content-length: ".length()));
          }
        }
        FakeTable.Result result = handled(first.split(" "), body(in, length));
        answer(connection.getOutputStream(), result);
      }
    } catch (IOException | RuntimeException | Json.Malformed | InterruptedException gone) {
      // The client has closed it.
    } finally {
      connections.remove(connection);
    }
  }

  private static String body(BufferedReader in, int length) throws IOException {
    char[] body = new char[length];
    for (int had = 0; had < length; ) {
      int more = in.read(body, had, length - had);
      if (more < 0) {
        throw new IOException("the client has closed it");
      }
      had += more;
    }
    return new String(new String(body).getBytes(StandardCharsets.ISO_8859_1), StandardCharsets.UTF_8);
  }

  private void answer(OutputStream out, FakeTable.Result result) throws IOException {
    byte[] body = result.body() == null ? new byte[0] : Json.write(result.body()).getBytes(StandardCharsets.UTF_8);
    String length = result.status() == 204 ? "" : "content-length: " + body.length + "\r\n";
    String head = "HTTP/1.1 " + result.status() + " \r\nringfence-cluster: " + id + "\r\n" + length + "\r\n";
    out.write(head.getBytes(StandardCharsets.ISO_8859_1));
    out.write(body);
    out.flush();
  }

  private synchronized FakeTable.Result handled(String[] line, String text) throws Json.Malformed, InterruptedException {
    look();
    String path = line[1];
    Map<?, ?> body = text.isEmpty() ? Map.of() : (Map<?, ?>) Json.read(text);
    if (path.equals(Server.LIVEZ)) {
      return new FakeTable.Result(200, Map.of());
    }
    if (path.startsWith("/v1/keys/")) {
      String key = URLDecoder.decode(path.substring("/v1/keys/".length()), StandardCharsets.UTF_8);
      return new FakeTable.Result(200, table.view(key));
    }
    if (path.equals("/v1/renew")) {
      return results(body.get("lease_ids"), one -> table.renew((String) one, null));
    }
    if (path.equals("/v1/batch")) {
      return results(body.get("operations"), one -> operation((Map<?, ?>) one));
    }
    String leaseId = path.substring(LEASES.length()).replace("/renew", "");
    return switch (line[0]) {
      case "PUT" -> acquired(leaseId, body);
      case "DELETE" -> released(leaseId);
      default -> table.renew(leaseId, body.get("ttl_ms"));
    };
  }

  @FunctionalInterface
  private interface Operation {
    FakeTable.Result run(Object one);
  }

  private static FakeTable.Result results(Object many, Operation operation) {
    List<Object> results = new ArrayList<>();
    for (Object one : (List<?>) many) {
      FakeTable.Result result = operation.run(one);
      Object status = result.status();
      results.add(result.body() == null ? Map.of("status", status) : Map.of("status", status, "body", result.body()));
    }
    return new FakeTable.Result(200, Map.of("results", results));
  }

  private FakeTable.Result operation(Map<?, ?> operation) {
    if (operation.get("acquire") instanceof Map<?, ?> acquire) {
      return table.acquire((String) acquire.get("lease_id"), acquire);
    }
    if (operation.get("renew") instanceof Map<?, ?> renew) {
      return table.renew((String) renew.get("lease_id"), renew.get("ttl_ms"));
    }
    return released((String) ((Map<?, ?>) operation.get("release")).get("lease_id"));
  }

  private FakeTable.Result released(String leaseId) {
    FakeTable.Result result = table.release(leaseId);
    notifyAll();
    return result;
  }

  /** Waits in the queue. */
  private FakeTable.Result acquired(String leaseId, Map<?, ?> body) throws InterruptedException {
    long until = Clock.nanos() / Checks.MS + (body.get("wait_ms") instanceof Long ms ? ms : 0);
    FakeTable.Result result = table.acquire(leaseId, body);
    while (result.status() == 202 && !isAway && Clock.nanos() / Checks.MS < until) {
      // Whatever moves the time or ends a lease wakes it. Time that passes by itself does not.
      wait(20);
      look();
      result = table.look(leaseId);
    }
    return result;
  }
}
