package dev.ringfence;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.text.MessageFormat;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.logging.Handler;
import java.util.logging.LogManager;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.regex.Pattern;

/** Plays the client's part in the conformance suite: requests and answers are lines of JSON. Logs go to stderr. */
final class ConformanceAdapter {
  // A thread cannot be cancelled, the thread that renews goes on while another one is blocked, and nothing forks.
  private static final List<String> ABILITIES =
      List.of(
          "using", "shared", "clock", "tls", "credential", "adopt", "headers", "hold_at_least", "max_hold", "deadline",
          "leave", "drop", "leaked", "exit", "on_lost", "on_lost_block", "interrupt", "lead", "close", "resources");
  private static final Duration LONG = Duration.ofDays(1_000);
  private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

  /** The body of a block failed, as it was told. */
  private static final class BodyException extends RuntimeException {
    private static final long serialVersionUID = 1;

    BodyException(String message) {
      super(message);
    }
  }

  private static final class Request {
    final Map<?, ?> fields;
    Thread thread;

    Request(Map<?, ?> fields) {
      this.fields = fields;
    }

    String text(String name) {
      return (String) fields.get(name);
    }

    Long number(String name) {
      return (Long) fields.get(name);
    }

    Duration time(String name) {
      return number(name) == null ? null : Duration.ofMillis(number(name));
    }
  }

  private final Map<String, Ringfence> clients = new ConcurrentHashMap<>();
  private final Map<String, Lease> leases = new ConcurrentHashMap<>();
  private final Map<Long, Request> pending = new ConcurrentHashMap<>();
  private final AtomicLong bootAhead = new AtomicLong();
  private final AtomicLong rawAhead = new AtomicLong();
  private final ExecutorService pool;

  private ConformanceAdapter(ExecutorService pool) {
    this.pool = pool;
  }

  public static void main(String[] arguments) throws Exception {
    log();
    // What a process has once: a source of randomness, the file of the clock, what closes sockets, and a thread that looks after handles.
    UUID.randomUUID();
    Clock.SYSTEM.now();
    SocketChannel.open().close();
    Class.forName(Lease.class.getName());
    new ConformanceAdapter(List.of(arguments).contains("--virtual") ? virtual() : daemons()).serve();
  }

  private static ExecutorService daemons() {
    return Executors.newCachedThreadPool(
        work -> {
          Thread thread = new Thread(work, "adapter");
          thread.setDaemon(true);
          return thread;
        });
  }

  /** JDK 21 and later have it. */
  private static ExecutorService virtual() throws ReflectiveOperationException {
    return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
  }

  private void serve() throws IOException {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      Map<?, ?> fields;
      try {
        fields = (Map<?, ?>) Json.read(line);
      } catch (Json.Malformed error) {
        throw new IOException(error);
      }
      if (fields.get("op").equals("exit")) {
        return;
      }
      begin(fields);
    }
  }

  private void begin(Map<?, ?> fields) {
    Request request = new Request(fields);
    long id = request.number("id");
    pending.put(id, request);
    if (List.of("drop", "clock").contains(request.text("op"))) {
      // What has been collected when the program ends, and what time it is, are part of the order of requests.
      answer(id, request);
    } else {
      pool.execute(() -> answer(id, request));
    }
  }

  private void answer(long id, Request request) {
    synchronized (request) {
      request.thread = Thread.currentThread();
    }
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("id", id);
    Map<String, Object> body;
    try {
      body = act(request);
      line.put("ok", body);
    } catch (Throwable error) {
      body = described(error);
      line.put("error", body);
    }
    synchronized (request) {
      request.thread = null;
      pending.remove(id);
    }
    if (Thread.interrupted()) {
      body.put("interrupted", true);
    }
    say(line);
  }

  private Map<String, Object> act(Request request) throws Exception {
    Map<String, Object> ok = new LinkedHashMap<>();
    String lease = request.text("lease");
    switch (request.text("op")) {
      case "hello" -> {
        ok.put("sdk", "java");
        ok.put("abilities", ABILITIES);
      }
      case "open" -> open(request);
      case "acquire" -> ok = acquire(request, lock(request));
      case "try" -> ok = acquire(request, lock(request).waitAtMost(Duration.ZERO));
      case "enter" -> granted(lease, lock(request).acquire());
      case "leave" -> leases.remove(lease).close();
      case "using" -> using(request);
      case "adopt" -> ok = granted(lease, clients.get(request.text("client")).adopt(request.text("lease_id")));
      case "interrupt" -> interrupt(pending.get(request.number("target")));
      case "many" -> ((List<?>) request.fields.get("requests")).forEach(one -> begin((Map<?, ?>) one));
      case "drop" -> drop(lease);
      case "lead" -> ok = lead(request);
      case "renew" -> renew(leases.get(lease), request);
      case "release" -> leases.get(lease).release(request.time("deadline_ms"));
      case "state" -> ok = state(leases.get(lease));
      case "headers" -> ok.put("headers", leases.get(lease).headers(request.text("key")));
      case "fence" -> ok.put("fence", leases.get(lease).fence(request.text("key")));
      case "clock" -> clock(request.fields.get("advance_ms"));
      case "close" -> ok.put("left", close(request));
      case "resources" -> ok = resources();
      default -> throw new IllegalArgumentException("no such operation: " + request.text("op"));
    }
    return ok;
  }

  private void open(Request request) {
    List<?> urls = (List<?>) request.fields.get("urls");
    Ringfence.Builder builder = Ringfence.builder(urls.toArray(new String[0]));
    if (request.text("credential") != null) {
      builder.credential(request.text("credential"));
    }
    if (request.text("ca") != null) {
      builder.authority(Path.of(request.text("ca")));
    }
    if (request.text("cert") != null) {
      builder.certificate(Path.of(request.text("cert")), Path.of(request.text("key")));
    }
    if ("played".equals(request.text("clock"))) {
      builder.clock(
          () -> {
            Moment now = Clock.SYSTEM.now();
            return new Moment(now.monotonic() + rawAhead.get(), now.uptime() + bootAhead.get());
          });
    }
    clients.put(request.text("client"), builder.connect());
  }

  private LockRequest lock(Request request) {
    List<?> keys = (List<?>) request.fields.get("keys");
    LockRequest lock =
        clients.get(request.text("client")).lock(keys.stream().map(ConformanceAdapter::claim).toArray(Claim[]::new));
    lock = with(lock, request.time("ttl_ms"), lock::ttl);
    lock = with(lock, request.time("wait_ms"), lock::waitAtMost);
    lock = with(lock, request.time("hold_at_least_ms"), lock::holdAtLeast);
    lock = with(lock, request.time("max_hold_ms"), lock::maxHold);
    lock = with(lock, request.text("holder"), lock::holder);
    if (request.fields.get("on_lost") != null) {
      lock = lock.onLost(request.text("on_lost").equals("raise") ? ConformanceAdapter::fails : ConformanceAdapter::blocks);
    }
    return lock;
  }

  private static <T> LockRequest with(LockRequest lock, T value, Function<T, LockRequest> change) {
    return value == null ? lock : change.apply(value);
  }

  private static Claim claim(Object key) {
    if (key instanceof String name) {
      return Claim.exclusive(name);
    }
    Map<?, ?> claim = (Map<?, ?>) key;
    String name = (String) claim.get("key");
    if (claim.get("limit") instanceof Long limit) {
      return Claim.limited(name, limit);
    }
    return Boolean.TRUE.equals(claim.get("shared")) ? Claim.shared(name) : Claim.exclusive(name);
  }

  private static void fails(Loss loss) {
    throw new BodyException("the callback failed");
  }

  private static void blocks(Loss loss) {
    try {
      new CountDownLatch(1).await();
    } catch (InterruptedException error) {
      throw new IllegalStateException("a callback was interrupted", error);
    }
  }

  private Map<String, Object> acquire(Request request, LockRequest lock) throws InterruptedException {
    Duration deadline = request.time("deadline_ms");
    return granted(request.text("lease"), deadline == null ? lock.acquire() : lock.acquire(deadline));
  }

  private Map<String, Object> granted(String name, Lease lease) {
    leases.put(name, lease);
    // Whoever waits for the loss does not keep the handle.
    Held held = lease.held();
    pool.execute(
        () -> {
          try {
            LossReason reason = held.awaitLoss(LONG.toNanos());
            say(Map.of("event", "lost", "lease", name, "reason", reason.toString()));
          } catch (InterruptedException error) {
            throw new IllegalStateException("nobody interrupts this", error);
          }
        });
    Map<String, Object> ok = new LinkedHashMap<>();
    ok.put("lease_id", lease.leaseId());
    ok.put("token", lease.token());
    Map<String, Object> fences = new LinkedHashMap<>();
    lease.keys().forEach(key -> fences.put(key, lease.fence(key)));
    ok.put("fences", fences);
    ok.put("state", lease.state().toString());
    return ok;
  }

  private void using(Request request) throws InterruptedException {
    String body = request.text("body");
    try (Lease lease = lock(request).acquire()) {
      granted(request.text("lease"), lease);
      if (body.equals("until_lost") || body.equals("swallow")) {
        lease.awaitLoss(LONG);
      } else if (request.number("ms") != null) {
        Thread.sleep(request.number("ms"));
      }
      if (body.equals("raise")) {
        throw new BodyException("the body failed");
      }
    }
  }

  private Map<String, Object> lead(Request request) throws InterruptedException {
    AtomicInteger terms = new AtomicInteger();
    AtomicInteger reported = new AtomicInteger();
    String body = request.text("body");
    Work<Boolean, InterruptedException> work =
        lease -> {
          say(Map.of("event", "leads", "lease", request.text("lease"), "token", lease.token()));
          if (terms.incrementAndGet() == 1 && !body.equals("return")) {
            if (body.equals("raise_stale")) {
              throw new StaleException("the guard refused the token");
            }
            if (body.equals("raise_after_loss")) {
              lease.awaitLoss(LONG);
            }
            throw new BodyException("the body failed");
          }
          return true;
        };
    clients
        .get(request.text("client"))
        .lock(request.text("key"))
        .ttl(request.time("ttl_ms"))
        .lead(work, error -> reported.incrementAndGet());
    return new LinkedHashMap<>(Map.of("terms", terms.get(), "reported", reported.get()));
  }

  private void interrupt(Request target) {
    synchronized (target) {
      if (target.thread == null) {
        throw new IllegalStateException("it is not pending");
      }
      target.thread.interrupt();
    }
  }

  private void drop(String name) throws InterruptedException {
    Held held = leases.remove(name).held();
    boolean wasReleased = held.isReleased();
    while (!wasReleased && !held.isReleased()) {
      System.gc();
      Thread.sleep(5);
    }
  }

  private static void renew(Lease lease, Request request) throws InterruptedException {
    Duration deadline = request.time("deadline_ms");
    if (request.time("ttl_ms") != null) {
      lease.renewFor(request.time("ttl_ms"), deadline == null ? LONG : deadline);
    } else if (deadline != null) {
      lease.renew(deadline);
    } else {
      lease.renew();
    }
  }

  private static Map<String, Object> state(Lease lease) {
    Map<String, Object> ok = new LinkedHashMap<>();
    ok.put("state", lease.state().toString());
    ok.put("remaining_ms", lease.remaining().toMillis());
    ok.put("reason", lease.lostReason().map(LossReason::toString).orElse(null));
    return ok;
  }

  private void clock(Object by) {
    for (String name : List.of("boot", "raw")) {
      Object ms = by instanceof Map<?, ?> each ? each.get(name) : by;
      if (ms instanceof Long advance) {
        (name.equals("boot") ? bootAhead : rawAhead).addAndGet(advance * 1_000_000);
      }
    }
  }

  private int close(Request request) {
    Ringfence client = clients.get(request.text("client"));
    Duration within = request.time("within_ms");
    return client.close(within == null ? Duration.ofSeconds(5) : within);
  }

  private static Map<String, Object> resources() {
    String[] files = new File("/proc/self/fd").list();
    // Virtual threads have some that carry them.
    Pattern own = Pattern.compile("adapter|ForkJoinPool.*|VirtualThread.*");
    long threads =
        Thread.getAllStackTraces().keySet().stream().filter(one -> !own.matcher(one.getName()).matches()).count();
    return new LinkedHashMap<>(Map.of("threads", threads, "descriptors", files == null ? 0 : files.length));
  }

  private static Map<String, Object> described(Throwable error) {
    Map<String, Object> body = new LinkedHashMap<>();
    String kind = error.getClass().getSimpleName().replaceAll("Exception$", "");
    boolean isKnown =
        error instanceof RingfenceException || error instanceof BodyException || error instanceof InterruptedException;
    body.put("kind", isKnown ? kind : "Internal");
    body.put("message", isKnown ? String.valueOf(error.getMessage()) : error.toString());
    body.put("reason", reason(error));
    body.put("lease_id", error instanceof UnknownException unknown ? unknown.leaseId() : null);
    body.put("retry_after_ms", null);
    List<Object> holders = new ArrayList<>();
    if (error instanceof HeldException held) {
      for (Blocker one : held.holders()) {
        Map<String, Object> holder = new LinkedHashMap<>();
        holder.put("key", one.key());
        holder.put("token", one.token());
        holder.put("holder", one.holder());
        holder.put("mode", one.shared() ? "shared" : "exclusive");
        holder.put("expires_in_ms", one.expiresIn().toMillis());
        holders.add(holder);
      }
    }
    body.put("holders", holders.isEmpty() ? null : holders);
    return body;
  }

  private static String reason(Throwable error) {
    if (error instanceof LostException lost) {
      return lost.reason().toString();
    }
    return error instanceof TimedOutException late ? late.reason().name().toLowerCase(Locale.ROOT) : null;
  }

  private static void say(Map<String, ?> line) {
    String text = Json.write(line) + "\n";
    synchronized (OUT) {
      OUT.print(text);
      OUT.flush();
    }
  }

  /** Tells the runner what the library says of a handle that was dropped. Stack traces are for people. */
  private static void log() {
    LogManager.getLogManager().reset();
    Logger.getLogger("").addHandler(
        new Handler() {
          @Override
          public void publish(LogRecord record) {
            String message = String.valueOf(record.getMessage());
            if (record.getParameters() != null) {
              message = MessageFormat.format(message.replace("'", "''"), record.getParameters());
            }
            if (message.contains("was dropped")) {
              say(Map.of("event", "leaked", "message", message));
            } else {
              System.err.println(record.getLevel() + " " + message + " " + record.getThrown());
            }
          }

          @Override
          public void flush() {}

          @Override
          public void close() {}
        });
  }
}
