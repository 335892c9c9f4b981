package dev.ringfence;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;

/**
 * The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows.
 *
 * <p><strong>Ambiguity is sticky.</strong> If one attempt may have been done, the outcome <em>not done</em> of a repeat says nothing
 * about it; only <em>done</em> or <em>refused</em> resolves it. All attempts of a call together take 5 s, far less than the 60 s after
 * which the cluster may forget an id.
 *
 * <p>Attempts may share requests with others. If that has brought an odd answer from each node, they are alone: something in between
 * may not let a batch pass.
 */
final class Attempts<T> {
  private static final long SHORTEST = 100 * Checks.MS;

  /** Whether an attempt may have been done. */
  boolean maybeDone;
  /** How long it has waited for a turn while others got answers. The cluster is not to blame for that. */
  long idle;

  long longestPause = Long.MAX_VALUE;
  private final Cluster cluster;
  private final Nodes nodes;
  private final Patience patience;
  private final String leaseId;
  private final boolean isOfALease;
  private int failed;
  private Backoff backoff = new Backoff();
  private String lastFailure = "no attempt was made";
  private long askAfter = -1;
  private final Set<Node> distrusted = new HashSet<>();
  /** How many answers to a shared request say nothing. */
  private int odd;
  /** Waits that go on elsewhere. */
  private final Map<Node, Exchange> left = new HashMap<>();

  /** {@code isOfALease}: it concerns a lease that may be held, so it goes on, as certificates may be replaced. */
  Attempts(Cluster cluster, Patience patience, String leaseId, boolean isOfALease) {
    this.cluster = cluster;
    this.nodes = cluster.nodes;
    this.patience = patience;
    this.leaseId = leaseId;
    this.isOfALease = isOfALease;
  }

  /** One attempt. */
  Outcome<T> attempt(Request request, long nanos, Outcome.Reader<T> reader) throws InterruptedException {
    if (failed > 0) {
      pause();
    }
    long asked = Clock.nanos();
    Node node = nodes.best(asked);
    Outcome<T> outcome;
    String leader = null;
    long silentSince = -1;
    boolean isUntrusted = false;
    try {
      Response response = send(node, request, nanos);
      if (response == null) {
        outcome = new Outcome.NotDone<>("no call gets an answer", -1);
        record(outcome);
        return outcome;
      }
      outcome = judge(node, response, reader);
      leader = response.leader();
    } catch (NoAnswer.NotSent error) {
      outcome = new Outcome.NotDone<>(error.getMessage(), -1);
      silentSince = asked;
      isUntrusted = error instanceof NoAnswer.Untrusted;
    } catch (NoAnswer error) {
      outcome = new Outcome.Ambiguous<>(error.getMessage());
      silentSince = asked;
      if (error instanceof NoAnswer.Left wait) {
        Exchange before = left.put(node, wait.open);
        if (before != null) {
          before.abort();
        }
      }
    }
    learn(node, outcome, leader, silentSince);
    record(outcome);
    if (isUntrusted) {
      distrusted.add(node);
    } else {
      distrusted.clear();
    }
    return outcome;
  }

  /** No wait is kept open any more: another node has answered, or nobody waits. */
  void leave() {
    left.values().forEach(Exchange::abort);
    left.clear();
  }

  /** Whether each node was asked in vain, as one side did not trust the other, and nothing else has happened. */
  boolean isDistrusted() {
    return distrusted.containsAll(nodes.configured());
  }

  /** Attempts until the outcome is definite, or so many nanoseconds are over. */
  T call(Request request, Outcome.Reader<T> reader, long retryFor) throws InterruptedException {
    // The time for that is not taken from the attempts.
    cluster.resolve(patience);
    long begun = Clock.nanos();
    while (true) {
      long remaining = Math.max(retryFor - (Clock.nanos() - begun - idle), SHORTEST);
      long most = nodes.hasAnother(Clock.nanos()) ? Cluster.ATTEMPT_WITHIN : Cluster.RETRY_FOR;
      Outcome<T> outcome = attempt(request, Math.min(remaining, most), reader);
      if (outcome instanceof Outcome.Done<T> done) {
        return done.value();
      }
      if (outcome instanceof Outcome.Refused<T> refused) {
        throw refused(refused);
      }
      if (Clock.nanos() - begun - idle >= retryFor || (!isOfALease && isDistrusted())) {
        throw error();
      }
    }
  }

  /** The error of a refusal. A denial says nothing of attempts that may have been done. */
  RingfenceException refused(Outcome.Refused<T> refused) {
    if (refused.isDenial() && maybeDone) {
      return new UnknownException(refused.why(), leaseId);
    }
    if (refused.loss() != null) {
      return new LostException(refused.loss());
    }
    return refused.isDenial() ? new UnauthorizedException(refused.problem()) : new RejectedException(refused.problem());
  }

  /** The error of a call without a definite outcome. */
  RingfenceException error() {
    return maybeDone ? new UnknownException(lastFailure, leaseId) : new UnavailableException(lastFailure);
  }

  private Outcome<T> judge(Node node, Response response, Outcome.Reader<T> reader) {
    Outcome<T> outcome = Outcome.of(response, reader);
    try {
      nodes.checkCluster(node, response.cluster(), outcome.isDefinite());
      return outcome;
    } catch (NoAnswer.NotSent stranger) {
      return new Outcome.NotDone<>(stranger.getMessage(), -1);
    }
  }

  private void learn(Node node, Outcome<T> outcome, String leader, long silentSince) {
    long now = Clock.nanos();
    if (outcome.isDefinite()) {
      cluster.answeredAt = now;
      leave();
      Node stranger = nodes.responded(node, leader, now);
      if (stranger != null) {
        cluster.meet(stranger);
      }
    } else if (!(outcome instanceof Outcome.NotDone<T> notDone && notDone.retryAfter() >= 0)) {
      nodes.failed(node, silentSince, now);
    }
  }

  private void pause() throws InterruptedException {
    long pause = failed % nodes.configured == 0 ? Math.min(backoff.next(), longestPause) : 0;
    if (askAfter >= 0) {
      pause = Math.max(pause, Math.min(askAfter, Math.min(Cluster.RETRY_FOR, longestPause)));
    }
    if (pause > 0) {
      patience.sleep(pause);
    }
  }

  /** The response; {@code null} if other calls have all connections, and none gets an answer. */
  private Response send(Node node, Request request, long nanos) throws NoAnswer, InterruptedException {
    // Once sent to a node that hangs or that is of another cluster, it could not be sent to another.
    if (!node.isMet) {
      cluster.meet(node, patience);
    }
    BooleanSupplier hasAnother = () -> nodes.hasUsableBesides(node, Clock.nanos());
    Server server = cluster.server(node);
    if (request.operation() != null && odd < nodes.configured) {
      Optional<Response> response;
      try {
        response = server.batcher.send(request, nanos, hasAnother, patience);
      } catch (NoAnswer.Broken error) {
        odd++;
        throw error;
      }
      if (response.isPresent()) {
        odd += response.get().status() >= 300 && response.get().problem() == null ? 1 : 0;
        return response.get();
      }
    }
    if (request.way() != Request.Way.SHARED) {
      return server.send(request, nanos, hasAnother, patience);
    }
    Turns.Turn turn = cluster.alone.ask();
    try {
      return hasTurn(turn, nanos) ? server.send(request, nanos, hasAnother, patience) : null;
    } finally {
      turn.end();
    }
  }

  /** Waits for a turn, for so long at most while no call gets an answer. Returns whether it is there. */
  private boolean hasTurn(Turns.Turn turn, long nanos) throws InterruptedException {
    long begun = Clock.nanos();
    long last = begun;
    while (!patience.await(turn.ready, last + nanos - Clock.nanos())) {
      long answered = cluster.answeredAt;
      if (answered <= last) {
        break;
      }
      last = answered;
    }
    idle += Math.max(cluster.answeredAt - begun, 0);
    return turn.ready.isDone();
  }

  private void record(Outcome<T> outcome) {
    askAfter = -1;
    if (outcome.isDefinite()) {
      failed = 0;
      odd = 0;
      backoff = new Backoff();
      return;
    }
    failed++;
    lastFailure = outcome.why();
    maybeDone |= outcome instanceof Outcome.Ambiguous;
    if (outcome instanceof Outcome.NotDone<T> notDone) {
      askAfter = notDone.retryAfter();
    }
  }
}
