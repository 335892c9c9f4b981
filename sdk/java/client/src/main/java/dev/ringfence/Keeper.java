package dev.ringfence;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;

/**
 * One timer per client looks after all its leases: it renews them, with one call for all that are due, and tells those that are lost.
 *
 * <pre>
 *   leases ──due after 1/3, or after 1/6 along with another──▶ POST /v1/renew, up to 1,000 ids ──▶ each confirmed, or lost
 *                                                                 │              ▲
 *                                                                 └─ ambiguous ──┘ at once at the next node, then with pauses
 * </pre>
 *
 * <p>An attempt takes at most a quarter of the shortest ttl in it, so that another node is asked in time. Calls run in parallel: one
 * that hangs delays no other lease. Safety does not depend on this: without it, leases become unsure, then lost, by their clocks
 * alone.
 */
final class Keeper {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  /** Timers stand still while the machine sleeps. */
  private static final long MAX_NAP = 1_000 * Checks.MS;

  private static final int MAX_BATCH = 1_000;
  /** Nodes answer with 8 MiB at most: what does not fit is not done. */
  private static final int MAX_ANSWER = 4 << 20;

  private final Cluster cluster;
  private final Map<Held, Kept> all = new LinkedHashMap<>();
  /** Many clients that began together renew apart. */
  private final double jitter = ThreadLocalRandom.current().nextDouble();

  private Future<?> timer;
  private long looksAt = Long.MAX_VALUE;

  private static final class Kept {
    final Held held;
    boolean isInFlight;
    /** A pause after the last call, which may have been in vain, or so slow that the lease is due again. */
    Moment notBefore;

    Kept(Held held) {
      this.held = held;
    }

    boolean isReady(Moment now) {
      return !isInFlight && (notBefore == null || now.hasReached(notBefore));
    }
  }

  Keeper(Cluster cluster) {
    this.cluster = cluster;
  }

  /** Keeps a lease from now on. */
  synchronized void add(Held held) {
    Kept kept = new Kept(held);
    all.put(held, kept);
    lookIn(nextLook(kept, cluster.clock.now()));
  }

  /** Keeps it no longer. */
  synchronized void remove(Held held) {
    all.remove(held);
  }

  /** Those that are kept. */
  synchronized List<Held> leases() {
    return List.copyOf(all.keySet());
  }

  /** Looks at the clock now. */
  synchronized void wake() {
    lookIn(0);
  }

  /** Keeps none any more. */
  synchronized void end() {
    all.clear();
    stopTimer();
  }

  private void lookIn(long nanos) {
    // A timer may be slower than the clock of leases, by a tenth.
    long nap = Math.min(Math.max(nanos - nanos / 8, Checks.MS), MAX_NAP);
    long at = Clock.nanos() + nap;
    if (at < looksAt) {
      stopTimer();
      looksAt = at;
      timer = cluster.workers.later(nap, this::look);
    }
  }

  private void stopTimer() {
    if (timer != null) {
      timer.cancel(false);
    }
    timer = null;
    looksAt = Long.MAX_VALUE;
  }

  private void look() {
    try {
      lookNow();
    } finally {
      // Also if something has failed.
      goOn();
    }
  }

  private synchronized void goOn() {
    if (!all.isEmpty() && looksAt == Long.MAX_VALUE) {
      lookIn(MAX_NAP);
    }
  }

  /** Tells losses, and begins the calls that are due. */
  private void lookNow() {
    List<Held> lost;
    List<List<Held>> chunks;
    synchronized (this) {
      looksAt = Long.MAX_VALUE;
      Moment now = cluster.clock.now();
      lost = all.keySet().stream().filter(held -> held.loss() != null).toList();
      lost.forEach(all::remove);
      chunks = chunks(due(now));
      chunks.forEach(chunk -> chunk.forEach(held -> all.get(held).isInFlight = true));
      all.values().stream().mapToLong(kept -> nextLook(kept, now)).min().ifPresent(this::lookIn);
    }
    lost.forEach(held -> Workers.guarded(held::tell).run());
    for (List<Held> chunk : chunks) {
      if (!cluster.workers.begin(() -> renew(chunk))) {
        renewed(chunk, List.of());
      }
    }
  }

  /** The leases to renew now: all that are half as old as one that is due. Those with the least time come first. */
  private List<Held> due(Moment now) {
    List<Kept> ready = all.values().stream().filter(kept -> kept.isReady(now)).toList();
    if (ready.stream().noneMatch(kept -> dueIn(kept.held, now, false) == 0)) {
      return List.of();
    }
    return ready.stream()
        .map(kept -> kept.held)
        .filter(held -> dueIn(held, now, true) == 0)
        .sorted(Comparator.comparing(held -> held.lifetime().until().monotonic()))
        .toList();
  }

  /**
   * How long until it is to be renewed, or may be along with another ({@code isEarly}): then half of the way to when it is due. Any
   * later, and two groups of leases could follow each other for ever. -1 if it is not to be renewed.
   */
  private long dueIn(Held held, Moment now, boolean isEarly) {
    Lifetime lifetime = held.lifetime();
    long due = lifetime.dueIn(now);
    long earlier = (long) (lifetime.ttl() / 12.0 * jitter);
    return due < 0 ? due : Math.max(0, due - (isEarly ? lifetime.ttl() / 6 + earlier / 2 : earlier));
  }

  /** How long until there is something to do for it, if nothing happens. */
  private long nextLook(Kept kept, Moment now) {
    long endsIn = kept.held.lifetime().end().since(now);
    long due = kept.isInFlight ? -1 : dueIn(kept.held, now, false);
    if (due < 0) {
      return endsIn;
    }
    return Math.min(endsIn, kept.notBefore == null ? due : Math.max(due, kept.notBefore.since(now)));
  }

  /** Renews these leases together, until an outcome is definite or none of them is left. */
  private void renew(List<Held> leases) {
    List<Held> full = new ArrayList<>();
    try {
      long ttl = leases.stream().mapToLong(held -> held.lifetime().ttl()).min().orElse(0);
      long nanos = Math.min(ttl / 4, Cluster.ATTEMPT_WITHIN);
      Attempts<Boolean> attempts = new Attempts<>(cluster, Patience.endless(), null, true);
      attempts.longestPause = nanos / 2;
      boolean isOver = false;
      for (List<Held> asked = kept(leases); !isOver && !asked.isEmpty(); asked = kept(leases)) {
        isOver = attempt(attempts, nanos, asked, full);
      }
    } catch (InterruptedException error) {
      // The client is closed.
    } finally {
      renewed(leases, full);
    }
  }

  /** Returns whether its outcome is definite. Those whose answers had no room are to be asked for again at once. */
  private boolean attempt(Attempts<Boolean> attempts, long nanos, List<Held> asked, List<Held> full)
      throws InterruptedException {
    String ids = asked.stream().map(held -> '"' + held.leaseId + '"').collect(Collectors.joining(","));
    Request request =
        new Request("POST", "/v1/renew", "{\"lease_ids\":[" + ids + "]}", null, 0, Request.Way.RENEWAL);
    Outcome<Boolean> outcome =
        attempts.attempt(
            request,
            nanos,
            response -> {
              List<Response> results = response.results(asked.size());
              for (int i = 0; i < results.size(); i++) {
                learn(asked.get(i), results.get(i));
                if (results.get(i).status() == 413) {
                  full.add(asked.get(i));
                }
              }
              return true;
            });
    if (!(outcome instanceof Outcome.Done)) {
      asked.forEach(held -> held.failed(outcome.why()));
    }
    if (outcome instanceof Outcome.Refused) {
      LOG.log(
          System.Logger.Level.WARNING,
          "a renewal of " + asked.size() + " leases was refused: " + outcome.why());
    }
    return outcome.isDefinite();
  }

  private static void learn(Held held, Response result) {
    if (result.status() == 200) {
      try {
        held.confirm(new Confirmation(result.sent(), Grant.read(result.json(), held.leaseId, held.view.keys())));
      } catch (Json.Malformed error) {
        LOG.log(System.Logger.Level.WARNING, "the renewal of a lease was unreadable: " + error.getMessage());
      }
      return;
    }
    Map<String, Object> problem = result.problem();
    if (problem == null) {
      return;
    }
    Outcome.Refused<Void> refused = new Outcome.Refused<>(problem, -1);
    LossReason loss = refused.loss();
    if (loss != null) {
      held.lose(loss);
    } else {
      held.failed(refused.why());
    }
  }

  private synchronized List<Held> kept(List<Held> leases) {
    return leases.stream().filter(held -> all.containsKey(held) && held.loss() == null).toList();
  }

  /** However the call has ended. */
  private synchronized void renewed(List<Held> leases, List<Held> full) {
    Moment now = cluster.clock.now();
    for (Held held : leases) {
      Kept kept = all.get(held);
      if (kept != null) {
        kept.isInFlight = false;
        kept.notBefore = now.plus(full.contains(held) ? 0 : Math.min(held.lifetime().ttl() / 12, MAX_NAP));
      }
    }
    if (!all.isEmpty()) {
      lookIn(0);
    }
  }

  /** As many as fit into one request and its answer. */
  private static List<List<Held>> chunks(List<Held> due) {
    List<List<Held>> chunks = new ArrayList<>();
    int size = MAX_ANSWER;
    for (Held held : due) {
      int answer = 300 + held.view.keys().stream().mapToInt(key -> 120 + 6 * key.length()).sum();
      if (size + answer > MAX_ANSWER || chunks.get(chunks.size() - 1).size() == MAX_BATCH) {
        chunks.add(new ArrayList<>());
        size = 0;
      }
      chunks.get(chunks.size() - 1).add(held);
      size += answer;
    }
    return chunks;
  }
}
