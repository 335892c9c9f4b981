package dev.ringfence;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * One acquire, from the request to a lease that is safe to use.
 *
 * <pre>
 *                ┌─ 202: the place is kept ◀─┐
 *                ▼                           │
 *     new id ─▶ PUT, waiting up to 30 s ─────┼─ 201, 200 ─▶ fresh? ─▶ granted
 *       ▲       ▲        │                   │                └─ no ─▶ renew once ───▶ granted
 *       │       └────────┘ ambiguous: the same PUT elsewhere, for 5 s
 *       └── the lease ended unused (its connection was lost for long)
 * </pre>
 *
 * <p>An acquire that was in the queue has reached the cluster, so during an outage it retries until its wait is over. After a PUT
 * without a definite outcome, and at a node that has had none yet, a PUT waits only briefly, to learn the state of the lease soon.
 *
 * <p>However the acquire ends, the lease is released as long as it may be granted or in the queue: in the background, or, if its thread
 * is interrupted, before it ends, for a second at most. The time of a grant counts from when <em>its</em> PUT was sent. After a wait
 * that is too long ago to begin work, so the client renews once.
 *
 * <p>The first PUT waits only briefly, and may share its request with others. Whoever is in the queue has a connection for its wait, or,
 * if too many wait, asks for its place every second, and four times within its ttl: a grant ends that nobody has seen by then. Who has
 * had a connection for a while gives it to the next.
 */
final class Acquire {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  /** Proxies often close connections that are silent for a minute. */
  private static final long SLICE_MS = 30_000;

  private static final long PROBE_MS = 100;
  /** While others want its connection. */
  private static final long TURN_MS = 2_000;
  /** A place is kept for 5 s. */
  private static final long POLL_MS = 1_000;

  private static final long TELLS_AFTER = 5_000 * Checks.MS;
  private static final Set<LossReason> UNUSED =
      Set.of(LossReason.EXPIRED, LossReason.ABANDONED, LossReason.FORGOTTEN);

  /** The lease ended unused: another id may do, after this pause, if time is left. */
  private static final class Unused extends Exception {
    private static final long serialVersionUID = 1;
    final long pause;

    Unused(long pause) {
      super(null, null, false, false);
      this.pause = pause;
    }
  }

  private final Cluster cluster;
  private final Keeper keeper;
  private final Options options;
  private final Patience patience;
  private final Teller teller;
  private long begun;
  private boolean hasWaited;
  private Future<?> telling;
  private volatile boolean isAnswered = true;

  Acquire(Cluster cluster, Keeper keeper, Options options, Patience patience, Teller teller) {
    this.cluster = cluster;
    this.keeper = keeper;
    this.options = options;
    this.patience = patience;
    this.teller = teller;
  }

  Confirmation run() throws InterruptedException {
    try {
      // A lookup is not part of the wait.
      cluster.resolve(patience);
      begun = Clock.nanos();
      Backoff backoff = new Backoff();
      while (true) {
        long pause;
        try {
          return new Attempt().run();
        } catch (Unused unused) {
          pause = Math.max(backoff.next(), unused.pause);
        }
        if (!options.isTry() && isOver()) {
          throw timedOut();
        }
        if (options.isTry() && Clock.nanos() - begun >= Cluster.RETRY_FOR) {
          // It was granted, for less time than it takes to make sure of that.
          throw new LostException(LossReason.UNCONFIRMED);
        }
        patience.sleep(options.isTry() ? pause : Math.min(pause, leftMs() * Checks.MS));
      }
    } finally {
      if (telling != null) {
        telling.cancel(false);
      }
    }
  }

  /** How much longer it may wait. */
  private long leftMs() {
    if (options.waitMs == null) {
      return Checks.DAY_MS;
    }
    return Math.max(0, options.waitMs - (Clock.nanos() - begun) / Checks.MS);
  }

  private boolean isOver() {
    return leftMs() == 0;
  }

  private TimedOutException timedOut() {
    return new TimedOutException(options.waitMs * Checks.MS, TimedOutException.Reason.WAIT);
  }

  /** It is in the queue, perhaps for so long that somebody wants to know for whom. */
  private void waits() {
    hasWaited = true;
    if (telling == null) {
      telling = cluster.workers.later(TELLS_AFTER, () -> cluster.workers.begin(this::tellOfWait));
    }
  }

  /** A queue is silent, and so is a program that waits for itself. */
  private void tellOfWait() {
    // If nodes give no definite outcome, it is not the queue that it waits for.
    if (!isAnswered) {
      return;
    }
    Set<Long> own = keeper.leases().stream().map(held -> held.token).collect(Collectors.toSet());
    for (String key : options.keys()) {
      try {
        for (Blocker one : cluster.holders(key, Patience.endless())) {
          String also = own.contains(one.token()) ? ", which this client itself holds" : "";
          LOG.log(System.Logger.Level.WARNING, "an acquire waits: " + one.told() + also);
        }
      } catch (RingfenceException | InterruptedException error) {
        LOG.log(
            System.Logger.Level.INFO,
            "an acquire waits for " + Text.quoted(key) + ", and cannot see who holds it: " + error.getMessage());
        return;
      }
    }
  }

  /** The use of one id. */
  private final class Attempt {
    private final String leaseId = UUID.randomUUID().toString();
    private final Attempts<Confirmation> attempts = new Attempts<>(cluster, patience, leaseId, false);
    private final long attemptBegun = Clock.nanos();
    private boolean hasPlace;
    /** Since when there was no definite outcome, if the last was none; else -1. */
    private long unansweredSince = -1;
    /** Its connection for waiting, once it has a place. */
    private Turns.Turn turn;
    /** Whether the lease may be granted or in the queue. */
    private boolean isArmed;

    Confirmation run() throws Unused, InterruptedException {
      try {
        Confirmation confirmation = null;
        while (confirmation == null) {
          patience.check();
          confirmation = put();
        }
        confirmation = freshened(confirmation);
        isArmed = false;
        return confirmation;
      } catch (InterruptedException error) {
        if (isArmed) {
          leaveBriefly();
        }
        throw error;
      } finally {
        attempts.leave();
        if (turn != null) {
          turn.end();
        }
        if (isArmed) {
          cluster.releases.begin(leaseId);
        }
        if (hasPlace) {
          Duration time = Duration.ofNanos(Clock.nanos() - attemptBegun);
          teller.tell(false, hooks -> hooks.waited(options.keys(), time));
        }
      }
    }

    /** One PUT. Returns the grant, or {@code null} to go on. */
    private Confirmation put() throws Unused, InterruptedException {
      boolean isBrief = !hasPlace || unansweredSince >= 0 || !cluster.nodes.best(Clock.nanos()).isProven;
      boolean mayWait = !isBrief && hasTurn();
      long waitMs = Math.min(leftMs(), !mayWait ? PROBE_MS : cluster.waits.isWanted() ? TURN_MS : SLICE_MS);
      if (options.waitMs != null && !options.isTry()) {
        attempts.longestPause = Math.max(leftMs(), PROBE_MS) * Checks.MS;
      }
      long putAt = Clock.nanos();
      long idle = attempts.idle;
      Request request = request(waitMs, mayWait);
      isArmed = true;
      Outcome<Confirmation> outcome =
          attempts.attempt(request, waitMs * Checks.MS + Cluster.ATTEMPT_WITHIN, this::read);
      passTurn(mayWait);
      putAt += attempts.idle - idle;
      if (outcome instanceof Outcome.Done<Confirmation> done && done.value() != null) {
        return done.value();
      }
      learn(outcome, putAt);
      isAnswered = unansweredSince < 0;
      if (!(outcome instanceof Outcome.Done)) {
        checkTime();
      }
      return null;
    }

    private void learn(Outcome<Confirmation> outcome, long putAt) throws Unused {
      if (outcome instanceof Outcome.Refused<Confirmation> refused) {
        refused(refused);
      } else if (outcome instanceof Outcome.NotDone<Confirmation> notDone) {
        // Whoever asks too often waits as long as the cluster says.
        if (notDone.retryAfter() < 0 || options.isTry() || isOver()) {
          unanswered(putAt);
        }
      } else if (outcome instanceof Outcome.Ambiguous) {
        // How a long wait ended says nothing of how long the cluster has been silent.
        unanswered(Math.max(putAt, Clock.nanos() - Cluster.ATTEMPT_WITHIN));
      } else {
        unansweredSince = -1;
        hasPlace = true;
        waits();
        if (isOver()) {
          // The caller may end now, or ask again: no place may stay behind. After a while that goes on in the background.
          leaveBriefly();
          throw timedOut();
        }
      }
    }

    private Request request(long waitMs, boolean mayWait) {
      String acquire = options.acquire(waitMs);
      String operation = "{\"acquire\":{\"lease_id\":\"" + leaseId + "\"," + acquire + "}}";
      return new Request(
          "PUT",
          "/v1/leases/" + leaseId,
          "{" + acquire + ",\"wait_ms\":" + waitMs + "}",
          mayWait ? null : operation,
          waitMs,
          mayWait ? Request.Way.WAIT : Request.Way.SHARED);
    }

    /** Whether a connection is free for a wait. */
    private boolean hasTurn() throws InterruptedException {
      if (turn == null) {
        turn = cluster.waits.ask();
      }
      long most = Math.min(POLL_MS, options.ttlMs / 4);
      long poll = ThreadLocalRandom.current().nextLong(most * 3 / 4, most);
      return patience.await(turn.ready, Math.min(poll, leftMs()) * Checks.MS);
    }

    /** Gives its connection to the next that wants it, and asks for another. */
    private void passTurn(boolean hasUsedIt) {
      if (turn != null && hasUsedIt && cluster.waits.isWanted()) {
        turn.end();
        turn = null;
      }
    }

    private Confirmation read(Response response) throws Json.Malformed {
      Object body = response.json();
      if (response.status() == 200 || response.status() == 201) {
        return new Confirmation(response.sent(), Grant.read(body, leaseId, options.keys()));
      }
      boolean isWaiting =
          body instanceof Map<?, ?> map && "waiting".equals(map.get("state")) && leaseId.equals(map.get("lease_id"));
      if (response.status() == 202 && isWaiting) {
        return null;
      }
      throw new Json.Malformed("it is no response to an acquire");
    }

    private void unanswered(long since) {
      if (unansweredSince < 0) {
        unansweredSince = since;
      }
    }

    /** Gives up after 5 s without a definite outcome; if it was in the queue, once the wait is over. */
    private void checkTime() {
      if (attempts.isDistrusted() && !hasPlace) {
        isArmed = attempts.maybeDone;
        throw attempts.error();
      }
      boolean retries = hasWaited && !isOver();
      if (retries || unansweredSince < 0 || Clock.nanos() - unansweredSince < Cluster.RETRY_FOR) {
        return;
      }
      // The place may still stand.
      attempts.maybeDone |= hasPlace;
      isArmed = attempts.maybeDone;
      throw attempts.error();
    }

    private void refused(Outcome.Refused<Confirmation> refused) throws Unused {
      // An abandoned PUT may still arrive, and find the key free.
      attempts.maybeDone |= refused.isDenial() && hasPlace;
      isArmed = attempts.maybeDone;
      String kind = refused.kind();
      if (kind.equals("held") && options.isTry()) {
        long waiters = refused.problem().get("waiters") instanceof Long count ? count : 0;
        throw new HeldException(Blocker.read(refused.problem().get("holders"), null), (int) waiters);
      }
      if (kind.equals("held") || kind.equals("wait-timeout")) {
        // The place is lost: no PUT came for it in time, or this was the last one.
        if (!isOver()) {
          throw new Unused(0);
        }
        throw timedOut();
      }
      if (refused.loss() == LossReason.EXPIRED || refused.loss() == LossReason.ABANDONED) {
        throw new Unused(0);
      }
      if (kind.equals("overloaded") && !options.isTry() && !isOver()) {
        throw new Unused(refused.retryAfter() < 0 ? 1_000 * Checks.MS : refused.retryAfter());
      }
      throw attempts.refused(refused);
    }

    /** Releases it, and waits for that for a second at most. A second interrupt ends the wait. */
    private void leaveBriefly() {
      isArmed = false;
      CompletableFuture<?> told = cluster.releases.begin(leaseId);
      try {
        told.get(Releases.LAST_CHANCE, TimeUnit.NANOSECONDS);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      } catch (ExecutionException | TimeoutException error) {
        // It goes on.
      }
    }

    /** Renews a lease that is not fresh enough to begin work. */
    private Confirmation freshened(Confirmation confirmation) throws Unused, InterruptedException {
      if (confirmation.isFresh(cluster.clock.now())) {
        return confirmation;
      }
      try {
        return cluster.renew(leaseId, options.keys(), null, patience);
      } catch (LostException lost) {
        isArmed = attempts.maybeDone;
        if (UNUSED.contains(lost.reason())) {
          throw new Unused(0);
        }
        throw lost;
      }
    }
  }
}
