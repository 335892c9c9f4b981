import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import dev.ringfence.LockRequest;
import dev.ringfence.Ringfence;
import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;

/**
 * The load of one process of Java: as load.py.
 *
 * <pre>
 * Load KIND LEASES SECONDS URL…         KIND is ringfence, redis, zookeeper or hazelcast
 * Load leaves LEASES CYCLES URL…        what so many cycles of the client of Ringfence leave behind
 * Load member ID HOST                   a member of Hazelcast, of three
 * </pre>
 */
final class Load {
  private static final Duration TTL = Duration.ofSeconds(10);
  /** What is first done once, as connecting and compiling, is not counted. */
  private static final Duration WARMUP = Duration.ofSeconds(5);
  /** Bounds what should take far less. */
  private static final Duration SOON = Duration.ofSeconds(60);
  private static final int HAZELCAST = 5701;
  /** States of a connection in the kernel's list. */
  private static final String ESTABLISHED = "01";
  private static final String TIME_WAIT = "06";
  private static final int MOST_CONNECTIONS = 300;
  private static final int MOST_TIME_WAIT = 1_000;

  @FunctionalInterface
  private interface Cycle {
    void run(String key) throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    System.setProperty("hazelcast.logging.type", "none");
    System.setProperty("hazelcast.phone.home.enabled", "false");
    if (arguments[0].equals("member")) {
      member(Integer.parseInt(arguments[1]), arguments[2]);
      return;
    }
    int leases = Integer.parseInt(arguments[1]);
    List<String> urls = List.of(arguments).subList(3, arguments.length);
    if (arguments[0].equals("leaves")) {
      leaves(leases, Long.parseLong(arguments[2]), urls);
      return;
    }
    Cycle cycle =
        switch (arguments[0]) {
          case "ringfence" -> ringfence(Ringfence.connect(urls.toArray(String[]::new)));
          case "redis" -> redis(urls);
          case "zookeeper" -> zookeeper(urls);
          default -> hazelcast(urls);
        };
    double seconds = Double.parseDouble(arguments[2]);
    long begins = System.nanoTime() + WARMUP.toNanos();
    long ends = begins + (long) (seconds * 1e9);
    AtomicLong count = new AtomicLong();
    work(
        leases,
        key -> {
          cycle.run(key);
          long now = System.nanoTime();
          count.addAndGet(now >= begins && now < ends ? 1 : 0);
        },
        () -> System.nanoTime() < ends);
    System.out.println("{\"per_s\": " + count.get() / seconds + "}");
    // The threads of some libraries go on.
    System.exit(0);
  }

  /** Runs the cycle on a thread for each lease, as long as there is more to do. */
  private static void work(int leases, Cycle cycle, BooleanSupplier hasMore) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(leases);
    List<Future<?>> workers = new ArrayList<>();
    for (int number = 0; number < leases; number++) {
      String key = "bench/" + number;
      workers.add(
          pool.submit(
              () -> {
                while (hasMore.getAsBoolean()) {
                  cycle.run(key);
                }
                return null;
              }));
    }
    for (Future<?> worker : workers) {
      worker.get();
    }
    pool.shutdown();
    pool.awaitTermination(SOON.toSeconds(), TimeUnit.SECONDS);
  }

  private static Cycle ringfence(Ringfence client) {
    return key -> client.lock(key).ttl(TTL).acquire().release();
  }

  private static Cycle redis(List<String> urls) {
    org.redisson.config.Config config = new org.redisson.config.Config();
    config.useSingleServer().setAddress(urls.get(0));
    RedissonClient client = Redisson.create(config);
    return key -> {
      RFencedLock lock = client.getFencedLock(key);
      lock.lockAndGetToken(TTL.toMillis(), TimeUnit.MILLISECONDS);
      lock.unlock();
    };
  }

  private static Cycle zookeeper(List<String> urls) {
    int ms = (int) TTL.toMillis();
    CuratorFramework client = CuratorFrameworkFactory.newClient(urls.get(0), ms, ms, new RetryOneTime(100));
    client.start();
    return key -> {
      InterProcessMutex mutex = new InterProcessMutex(client, "/locks/" + key.replace('/', '-'));
      mutex.acquire();
      mutex.release();
    };
  }

  /** A client of all members. It asks any of them, and that one asks the leader. */
  private static Cycle hazelcast(List<String> urls) {
    ClientConfig config = new ClientConfig();
    urls.forEach(config.getNetworkConfig()::addAddress);
    HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
    return key -> {
      var lock = client.getCPSubsystem().getLock(key);
      lock.lock();
      lock.unlock();
    };
  }

  private static void member(int id, String host) {
    // An address of the loopback interface that it does not list.
    System.setProperty("hazelcast.local.localAddress", host);
    System.setProperty("hazelcast.socket.bind.any", "false");
    Config config = new Config();
    config.getCPSubsystemConfig().setCPMemberCount(3);
    var network = config.getNetworkConfig().setPort(HAZELCAST + id).setPortAutoIncrement(false);
    var join = network.getJoin();
    join.getAutoDetectionConfig().setEnabled(false);
    join.getTcpIpConfig().setEnabled(true);
    for (int other = 0; other < 3; other++) {
      join.getTcpIpConfig().addMember(host + ":" + (HAZELCAST + other));
    }
    Hazelcast.newHazelcastInstance(config);
  }

  /** Prints what there was most of, and what is left once the client is closed. */
  private static void leaves(int leases, long cycles, List<String> urls) throws Exception {
    AtomicLong begun = new AtomicLong();
    AtomicLong most = new AtomicLong();
    try (Ringfence client = Ringfence.connect(urls.toArray(String[]::new))) {
      Cycle cycle = ringfence(client);
      work(
          leases,
          key -> {
            cycle.run(key);
            if (begun.get() % 500 == 0) {
              most.accumulateAndGet(connections(urls, ESTABLISHED), Math::max);
            }
          },
          () -> begun.incrementAndGet() <= cycles);
    }
    BooleanSupplier isClean =
        () -> threads() == 0 && connections(urls, ESTABLISHED) == 0;
    for (long ends = System.nanoTime() + SOON.toNanos(); !isClean.getAsBoolean() && System.nanoTime() < ends; ) {
      Thread.sleep(100);
    }
    long waiting = connections(urls, TIME_WAIT);
    System.out.printf(
        "{\"cycles\": %d, \"most_connections\": %d, \"time_wait\": %d, \"threads_left\": %d, \"connections_left\": %d}%n",
        cycles, most.get(), waiting, threads(), connections(urls, ESTABLISHED));
    boolean isBounded = most.get() <= MOST_CONNECTIONS && waiting < MOST_TIME_WAIT;
    System.exit(isClean.getAsBoolean() && isBounded ? 0 : 1);
  }

  /** How many threads clients have, but for the one that a process has once. */
  private static long threads() {
    return Thread.getAllStackTraces().keySet().stream()
        .map(Thread::getName)
        .filter(name -> name.startsWith("ringfence-") && !name.equals("ringfence-cleaner"))
        .count();
  }

  /** How many connections to these nodes are in this state. Nobody else calls them. */
  private static long connections(List<String> urls, String state) {
    List<String> ends = urls.stream().map(Load::listed).toList();
    // Whichever side has closed a connection has it in its list for a while.
    List<Integer> columns = state.equals(TIME_WAIT) ? List.of(1, 2) : List.of(2);
    try {
      List<String> lines = new ArrayList<>();
      for (String list : List.of("/proc/net/tcp", "/proc/net/tcp6")) {
        lines.addAll(Files.readAllLines(Path.of(list)));
      }
      return lines.stream()
          .map(line -> line.trim().split(" +"))
          .filter(words -> words[3].equals(state))
          .filter(words -> columns.stream().anyMatch(column -> ends.stream().anyMatch(words[column]::endsWith)))
          .count();
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  /** An address as the kernel lists it: in hexadecimal, the last octet first. An IPv4 address is the end of the IPv6 one. */
  private static String listed(String url) {
    try {
      byte[] octets = InetAddress.getByName(URI.create(url).getHost()).getAddress();
      return String.format(
          "%02X%02X%02X%02X:%04X", octets[3], octets[2], octets[1], octets[0], URI.create(url).getPort());
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }
}
