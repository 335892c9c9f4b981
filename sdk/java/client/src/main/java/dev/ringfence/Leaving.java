package dev.ringfence;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/**
 * How a lease is left, whoever does it: its holder, the end of a block, {@code close}, or the collector that found the handle
 * dropped.
 *
 * <pre>
 *   left, and hold-at-least is over ──────────────────────────────────────▶ DELETE
 *     │
 *     └── not yet ──▶ one renewal, for what is left ── confirmed ──▶ nothing renews it; DELETE once the time is over
 *                       │              ▲
 *                       └── not now ───┘ after a second. Meanwhile it is renewed as before, and deleted once the time is over
 * </pre>
 *
 * <p>The one renewal keeps others out even if this process ends. Until it is confirmed, only renewals do that. If the lease is lost
 * meanwhile, nothing more is done, as the one renewal may have been. Nor is anything if its holder's clock alone had ended it before:
 * the cluster may still keep it.
 */
final class Leaving {
  private static final long PAUSE = 1_000 * Checks.MS;

  private final Cluster cluster;
  private final Keeper keeper;
  private final Set<Hold> holds = ConcurrentHashMap.newKeySet();

  Leaving(Cluster cluster, Keeper keeper) {
    this.cluster = cluster;
    this.keeper = keeper;
  }

  /** Releases a lease that was left; {@code lost} says why it had ended before. What it returns ends with what came of it. */
  CompletableFuture<RingfenceException> begin(Held held, LossReason lost) {
    Moment until = held.leastUntil;
    boolean isOver = until == null || until.since(cluster.clock.now()) == 0;
    if (isOver || lost != null && lost != LossReason.UNCONFIRMED) {
      keeper.remove(held);
      return cluster.releases.begin(held.leaseId);
    }
    if (lost != null) {
      keeper.remove(held);
      return CompletableFuture.completedFuture(null);
    }
    Hold hold = new Hold(held.standIn(), until);
    cluster.register.opens(held.leaseId);
    holds.add(hold);
    keeper.add(hold.held);
    keeper.remove(held);
    hold.begin();
    return hold.told;
  }

  /** Ends once each of those now is either released or held without this process, or its first call has failed. */
  CompletableFuture<Void> settled() {
    return CompletableFuture.allOf(holds.stream().map(hold -> hold.told).toArray(CompletableFuture<?>[]::new));
  }

  /** Nobody goes on with them. Returns how many will not be held for as long as they were to be. */
  int end() {
    int unsure = (int) holds.stream().filter(hold -> !hold.isSure).count();
    holds.forEach(Hold::end);
    return unsure;
  }

  private final class Hold {
    final Held held;
    final CompletableFuture<RingfenceException> told = new CompletableFuture<>();
    volatile boolean isSure;
    private final Moment until;

    Hold(Held held, Moment until) {
      this.held = held;
      this.until = until;
    }

    /** Makes the one renewal. */
    void begin() {
      // Not beside the requests: there may be many, and each would hold up a thread that renews.
      if (!cluster.workers.release(this::renew)) {
        goOn();
      }
    }

    void end() {
      if (holds.remove(this)) {
        cluster.register.closes(held.leaseId);
      }
      keeper.remove(held);
      told.complete(new ClosedException());
    }

    private long left() {
      return until.since(cluster.clock.now());
    }

    private void renew() {
      // The allowance for clocks is part of what remains.
      long ttlMs = Math.min(Math.max(100, left() / 500 * 501 / Checks.MS + 10), Checks.DAY_MS);
      try {
        held.confirm(cluster.renew(held.leaseId, held.view.keys(), ttlMs, Patience.endless()));
        isSure = true;
        keeper.remove(held);
      } catch (LostException lost) {
        held.lose(lost.reason());
        told.complete(lost);
      } catch (RingfenceException | InterruptedException error) {
        // It goes on.
      } finally {
        told.complete(null);
        goOn();
      }
    }

    private void goOn() {
      if (!holds.contains(this)) {
        return;
      }
      if (!isSure && held.loss() != null) {
        end();
      } else if (cluster.workers.later(Math.min(left(), PAUSE), this::look) == null) {
        // The client is closed.
        told.complete(new ClosedException());
      }
    }

    private void look() {
      if (!holds.contains(this)) {
        return;
      }
      if (left() == 0) {
        cluster.releases.begin(held.leaseId);
        end();
      } else if (isSure) {
        goOn();
      } else if (held.loss() != null) {
        // The renewal may have been done although its answer was lost.
        end();
      } else {
        begin();
      }
    }
  }
}
