package dev.ringfence;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** The cluster, as the leases of one client share it. */
final class Cluster {
  /** How long a call is repeated without a definite outcome. */
  static final long RETRY_FOR = 5_000 * Checks.MS;
  /** How long one node may take if another can be asked. */
  static final long ATTEMPT_WITHIN = 2_000 * Checks.MS;

  private static final long LOOKUP_WITHIN = 15_000 * Checks.MS;
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  // With two requests of a batch and a probe these are 64 connections to a node at most; renewals have their own. When calls go on
  // at another node, connections to the first are idle, or left until there is an answer: for a while there are twice as many.
  private static final int MOST_ALONE = 29;
  private static final int MOST_WAITS = 32;

  final Clock clock;
  final Workers workers;
  final Nodes nodes;
  final Register register = new Register();
  final Releases releases;
  final Turns alone = new Turns(MOST_ALONE);
  final Turns waits = new Turns(MOST_WAITS);
  private final Names names;
  private final Tls tls;
  private final String credential;
  private final Map<Node, Server> servers = new ConcurrentHashMap<>();
  /** When a call last had a definite outcome. */
  volatile long answeredAt;

  volatile boolean isClosed;

  Cluster(List<String> urls, Tls tls, String credential, boolean learns, Clock clock, Workers workers) {
    this.clock = clock;
    this.workers = workers;
    this.tls = tls;
    this.credential = credential;
    this.names = new Names(workers);
    this.nodes = new Nodes(urls, learns, url -> names.isResolved(url.host()));
    this.releases = new Releases(this);
  }

  /** The connections to a node. */
  Server server(Node node) {
    return servers.computeIfAbsent(node, one -> new Server(one.url, names, workers, tls, credential, clock));
  }

  /** Waits until a node can be connected to without a lookup. If none can, the next attempt fails, and says why. */
  void resolve(Patience patience) throws InterruptedException {
    if (names.isResolved(nodes.best(Clock.nanos()).url.host())) {
      patience.check();
      return;
    }
    long until = Clock.nanos() + LOOKUP_WITHIN;
    List<String> hosts = nodes.configured().stream().map(node -> node.url.host()).distinct().toList();
    while (Clock.nanos() < until && hosts.stream().noneMatch(names::isResolved)) {
      List<CompletableFuture<Void>> lookups = hosts.stream().map(names::lookup).filter(one -> !one.isDone()).toList();
      if (lookups.isEmpty()) {
        return;
      }
      patience.await(CompletableFuture.anyOf(lookups.toArray(new CompletableFuture<?>[0])), until - Clock.nanos());
    }
  }

  /** Asks a node for a sign of life of this client's cluster. */
  void meet(Node node, Patience patience) throws NoAnswer, InterruptedException {
    Response response = server(node).probe(patience);
    nodes.checkCluster(node, response.cluster(), false);
    nodes.met(node);
  }

  /** Does the same in the background. */
  void meet(Node node) {
    workers.begin(
        () -> {
          try {
            meet(node, Patience.endless());
          } catch (NoAnswer | InterruptedException error) {
            LOG.log(System.Logger.Level.DEBUG, "the leader's URL is of no use: {0}", error.getMessage());
          }
        });
  }

  /** Renews a lease by its id; for its ttl, if {@code ttlMs} is {@code null}. {@code keys}: its keys, if they are known. */
  Confirmation renew(String leaseId, List<String> keys, Long ttlMs, Patience patience) throws InterruptedException {
    String more = ttlMs == null ? "" : "\"ttl_ms\":" + ttlMs;
    // An id needs no escapes in JSON.
    String operation =
        "{\"renew\":{\"lease_id\":\"" + leaseId + '"' + (more.isEmpty() ? "" : "," + more) + "}}";
    Request request =
        new Request("POST", "/v1/leases/" + leaseId + "/renew", "{" + more + "}", operation, 0, Request.Way.SHARED);
    Attempts<Confirmation> attempts = new Attempts<>(this, patience, leaseId, true);
    return attempts.call(
        request, response -> new Confirmation(response.sent(), Grant.read(response.json(), leaseId, keys)), RETRY_FOR);
  }

  /** Releases a lease, or leaves the queue. */
  void release(String leaseId, long nanos, Patience patience) throws InterruptedException {
    String operation = "{\"release\":{\"lease_id\":\"" + leaseId + "\"}}";
    Request request = new Request("DELETE", "/v1/leases/" + leaseId, "", operation, 0, Request.Way.SHARED);
    new Attempts<Boolean>(this, patience, leaseId, true).call(request, Cluster::noContent, nanos);
  }

  /** The leases that hold a key. */
  List<Blocker> holders(String key, Patience patience) throws InterruptedException {
    Request request = Request.of("GET", "/v1/keys/" + Text.segment(key), "");
    Attempts<List<Blocker>> attempts = new Attempts<>(this, patience, null, false);
    return attempts.call(
        request,
        response -> {
          if (response.json() instanceof Map<?, ?> body && body.get("holders") instanceof List<?> holders) {
            return Blocker.read(holders, key);
          }
          throw new Json.Malformed("no holders");
        },
        RETRY_FOR);
  }

  /** Closes the connections. */
  void disconnect() {
    servers.values().forEach(Server::close);
  }

  private static Boolean noContent(Response response) throws Json.Malformed {
    if (response.status() != 204) {
      throw new Json.Malformed("expected 204");
    }
    return true;
  }
}
