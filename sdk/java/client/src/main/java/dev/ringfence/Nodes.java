package dev.ringfence;

import java.net.URISyntaxException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.function.Predicate;

/**
 * Which node to ask next. Time is passed in; nothing here does I/O.
 *
 * <p>Every node takes every request, but followers forward it: the leader responds sooner. So the client asks the node that the last
 * response named as the leader, and otherwise the node that responded last. It avoids a node that failed for a while, even if others
 * still name it: twice as long each time that it does not answer at all.
 *
 * <p>A URL may lead to another cluster, and two clusters grant the same key at once. So a client belongs to the cluster of its first
 * definite response, and the response of another cluster is none. A node that gave one, or whose URL was learned from a response, is
 * used once it has <em>met</em> the client: it has answered a probe, and not for another cluster.
 */
final class Nodes {
  /** A cluster has no more. */
  private static final int MAX_LEARNED = 16;

  /** How many nodes are tried in turn. */
  final int configured;

  final boolean isHttps;
  private final List<Node> all = new ArrayList<>();
  private final boolean learns;
  private final Predicate<Url> isResolved;
  private Node preferred;
  private Node leader;
  private String named;
  private String cluster;

  Nodes(List<String> urls, boolean learns, Predicate<Url> isResolved) {
    this.learns = learns;
    this.isResolved = isResolved;
    for (int i = 0; i < urls.size(); i++) {
      String field = "urls[" + i + "]";
      Url url;
      try {
        url = Url.parse(urls.get(i));
      } catch (URISyntaxException error) {
        throw new InvalidException(field, error.getMessage());
      }
      if (!all.isEmpty() && url.isHttps() != all.get(0).url.isHttps()) {
        throw new InvalidException(field, url + ": all URLs begin with https://, or none");
      }
      if (find(url) == null) {
        all.add(new Node(url, true));
      }
    }
    if (all.isEmpty()) {
      throw new InvalidException("urls", "a client needs the URL of at least one node");
    }
    configured = all.size();
    isHttps = all.get(0).url.isHttps();
    preferred = all.get(0);
  }

  /** The nodes whose URLs the client was given. */
  synchronized List<Node> configured() {
    return List.copyOf(all.subList(0, configured));
  }

  /** The node to ask: the preferred one unless it failed lately, else the configured one that failed longest ago. */
  synchronized Node best(long now) {
    if (isUsable(preferred, now)) {
      return preferred;
    }
    Comparator<Node> order = Comparator.comparing(node -> !isResolved.test(node.url));
    return all.subList(0, configured).stream().min(order.thenComparing(node -> node.failedAt)).orElseThrow();
  }

  /** Whether another node is asked if the best one fails. */
  synchronized boolean hasAnother(long now) {
    return configured > 1 || best(now) != all.get(0);
  }

  /** Whether another one may answer. */
  synchronized boolean hasUsableBesides(Node node, long now) {
    return all.stream().anyMatch(other -> other != node && isUsable(other, now));
  }

  /** Checks for which cluster a node has responded. If it is another, nothing was done for this client. */
  synchronized void checkCluster(Node node, String told, boolean isDefinite) throws NoAnswer.NotSent {
    if (told == null || told.equals(cluster)) {
      return;
    }
    if (cluster == null) {
      cluster = isDefinite ? told : null;
      return;
    }
    node.isMet = false;
    throw new NoAnswer.NotSent(
        node.url
            + " answers for cluster "
            + Text.quoted(told)
            + ", this client belongs to cluster "
            + Text.quoted(cluster)
            + ": if that was replaced, make a new client");
  }

  /** Records a definite response, and the leader that it named. Returns the leader if it is to be met. */
  synchronized Node responded(Node node, String leaderUrl, long now) {
    node.failedAt = -1;
    node.silences = 0;
    node.isMet = true;
    node.isProven = true;
    if (!Objects.equals(named, leaderUrl)) {
      named = leaderUrl;
      leader = leaderUrl == null ? null : learn(leaderUrl);
    }
    preferred = leader != null && leader.isMet ? leader : node;
    if (leader == null || leader.isMet || !leader.isHealthy(now)) {
      return null;
    }
    // Until it answers.
    leader.failedAt = now;
    leader.silences++;
    return leader;
  }

  /** Records that a node has answered a probe for this cluster. */
  synchronized void met(Node node) {
    node.failedAt = -1;
    node.silences = 0;
    node.isMet = true;
    if (leader == node) {
      preferred = node;
    }
  }

  /** Records that a node gave no definite response. {@code silentSince}: when it was asked, if it gave none at all; else -1. */
  synchronized void failed(Node node, long silentSince, long now) {
    long before = node.failedAt;
    node.failedAt = now;
    if (silentSince < 0) {
      node.silences = 0;
    } else if (before < silentSince) {
      // All that were sent before the first of them failed show one and the same outage.
      node.silences++;
    }
    node.isMet = node.isMet && all.indexOf(node) < configured;
    node.isProven = false;
  }

  private boolean isUsable(Node node, long now) {
    return node.isMet && node.isHealthy(now) && isResolved.test(node.url);
  }

  private Node find(Url url) {
    return all.stream().filter(node -> node.url.isSamePlace(url)).findFirst().orElse(null);
  }

  /** The node at a URL that a response named, which may be new. */
  private Node learn(String text) {
    Url url;
    try {
      url = Url.parse(text);
    } catch (URISyntaxException error) {
      return null;
    }
    Node known = find(url);
    if (known == null && learns && url.isHttps() == isHttps && all.size() < configured + MAX_LEARNED) {
      known = new Node(url, false);
      all.add(known);
    }
    return known;
  }
}
