package dev.ringfence;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The addresses of hosts.
 *
 * <p>A name server may hang, and a name may have addresses that lead nowhere. So a lookup is apart from connecting: it has a thread of
 * its own, at most one per name and client, and goes on when its caller gives up. The last good addresses are used at once while
 * another lookup renews them, and the one that answered last is the first.
 */
final class Names {
  private static final long LOOKUP_INTERVAL = 1_000 * Checks.MS;

  private final Map<String, Name> known = new ConcurrentHashMap<>();
  private final Workers workers;

  Names(Workers workers) {
    this.workers = workers;
  }

  /** Whether addresses are known. If not, a lookup goes on in the background. */
  boolean isResolved(String host) {
    return isLiteral(host) || name(host).isResolved();
  }

  /** Ends once there are addresses, or a lookup has failed. */
  CompletableFuture<Void> lookup(String host) {
    return isLiteral(host) ? CompletableFuture.completedFuture(null) : name(host).lookup();
  }

  /** The last good addresses, while a lookup in the background renews them. */
  List<InetAddress> addresses(String host) throws NoAnswer.NotSent {
    try {
      return isLiteral(host) ? List.of(InetAddress.getByName(host)) : name(host).addresses();
    } catch (UnknownHostException error) {
      throw new NoAnswer.NotSent(host + " is no address");
    }
  }

  /** This address has accepted a connection. */
  void answered(String host, InetAddress address) {
    if (!isLiteral(host)) {
      name(host).answered = address;
    }
  }

  /** Its connection brought nothing: begin with another address next time. */
  void forget(String host) {
    if (!isLiteral(host)) {
      name(host).failed();
    }
  }

  private Name name(String host) {
    return known.computeIfAbsent(host, Name::new);
  }

  /** No name ends in a number. */
  private static boolean isLiteral(String host) {
    return host.indexOf(':') >= 0 || host.matches("[0-9.]+");
  }

  private final class Name {
    private final String host;
    private volatile List<InetAddress> found = List.of();
    private volatile String failure = "not looked up";
    private volatile InetAddress answered;
    private CompletableFuture<Void> pending = CompletableFuture.completedFuture(null);
    private long beganAt = -LOOKUP_INTERVAL;

    Name(String host) {
      this.host = host;
    }

    boolean isResolved() {
      if (found.isEmpty()) {
        lookup();
      }
      return !found.isEmpty();
    }

    List<InetAddress> addresses() throws NoAnswer.NotSent {
      lookup();
      if (found.isEmpty()) {
        throw new NoAnswer.NotSent(host + " was not resolved: " + failure);
      }
      List<InetAddress> sorted = new ArrayList<>(found);
      InetAddress first = answered;
      sorted.sort(Comparator.comparing(address -> !address.equals(first)));
      return sorted;
    }

    void failed() {
      InetAddress last = answered;
      if (last != null) {
        List<InetAddress> sorted = new ArrayList<>(found);
        sorted.sort(Comparator.comparing(address -> address.equals(last)));
        found = sorted;
        answered = null;
      }
    }

    synchronized CompletableFuture<Void> lookup() {
      long now = Clock.nanos();
      if (pending.isDone() && now - beganAt >= LOOKUP_INTERVAL) {
        beganAt = now;
        CompletableFuture<Void> ended = new CompletableFuture<>();
        pending = ended;
        if (!workers.begin(() -> ask(ended))) {
          failure = "there is no room for another thread";
          ended.complete(null);
        }
      }
      return found.isEmpty() ? pending : CompletableFuture.completedFuture(null);
    }

    private void ask(CompletableFuture<Void> ended) {
      try {
        found = List.of(InetAddress.getAllByName(host));
      } catch (UnknownHostException error) {
        // A lookup that failed takes no good address away.
        failure = error.getMessage();
      } finally {
        ended.complete(null);
      }
    }
  }
}
