package dev.ringfence;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Releases, which nobody's end may end.
 *
 * <pre>
 *     begin ──▶ DELETE, repeated for 5 s ── done, or refused ──▶ told
 *                     │                                            ▲
 *                     └── no outcome: told so, and repeated in ────┘
 *                         the background, for 30 s in all
 * </pre>
 *
 * <p>A release is no part of whoever asks for it: who is interrupted, or gives up, leaves it alone.
 */
final class Releases {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  /** How long clean-up takes that somebody's interrupt or end waits for. */
  static final long LAST_CHANCE = 1_000 * Checks.MS;

  private static final long RELEASE_FOR = 30_000 * Checks.MS;

  private final Cluster cluster;
  private final Set<Release> open = ConcurrentHashMap.newKeySet();

  Releases(Cluster cluster) {
    this.cluster = cluster;
  }

  /**
   * Releases a lease, or leaves the queue. What it returns ends with {@code null} or the error, and may be left alone.
   */
  CompletableFuture<RingfenceException> begin(String leaseId) {
    Release release = new Release(leaseId);
    cluster.register.opens(leaseId);
    open.add(release);
    if (!cluster.workers.release(release)) {
      release.told.complete(new ClosedException());
      release.end();
    }
    return release.told;
  }

  /** How many are under way. */
  int count() {
    return open.size();
  }

  /** Ends once none of those is left that are under way now. */
  CompletableFuture<Void> settled() {
    return CompletableFuture.allOf(open.stream().map(one -> one.ended).toArray(CompletableFuture<?>[]::new));
  }

  /** Ends the first attempts: each is repeated for a second. */
  void hurry() {
    open.forEach(Release::hurry);
  }

  /** Ends them. */
  void close() {
    open.forEach(one -> one.patience.stop(new ClosedException()));
  }

  /** Somebody is in a hurry, and the node may hang that was asked first. */
  private static final class Hurry extends RingfenceException {
    private static final long serialVersionUID = 1;

    Hurry() {
      super("in a hurry");
    }
  }

  private final class Release implements Runnable {
    final CompletableFuture<RingfenceException> told = new CompletableFuture<>();
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    private final String leaseId;
    private volatile Patience patience = Patience.endless();
    private volatile boolean hurries;

    Release(String leaseId) {
      this.leaseId = leaseId;
    }

    void hurry() {
      if (!hurries) {
        hurries = true;
        patience.stop(new Hurry());
      }
    }

    @Override
    public void run() {
      RingfenceException error = new ClosedException();
      try {
        error = attempt(Cluster.RETRY_FOR);
      } finally {
        told.complete(error);
        boolean isOpen = error instanceof UnknownException || error instanceof UnavailableException;
        // Behind the others: it takes long.
        if (!isOpen || !cluster.workers.release(this::goOn)) {
          report(error);
          end();
        }
      }
    }

    private void goOn() {
      RingfenceException error = new ClosedException();
      try {
        error = attempt(RELEASE_FOR - Cluster.RETRY_FOR);
      } finally {
        report(error);
        end();
      }
    }

    private RingfenceException attempt(long nanos) {
      try {
        cluster.release(leaseId, nanos, patience);
        return null;
      } catch (Hurry hurry) {
        patience = Patience.endless();
        return attempt(LAST_CHANCE);
      } catch (RingfenceException error) {
        return error;
      } catch (InterruptedException error) {
        return new ClosedException();
      }
    }

    private void report(RingfenceException error) {
      if (error != null && !(error instanceof LostException) && !cluster.isClosed) {
        LOG.log(
            System.Logger.Level.WARNING,
            "a lease could not be released, and ends with its ttl: {0}",
            error.getMessage());
      }
    }

    private void end() {
      open.remove(this);
      cluster.register.closes(leaseId);
      ended.complete(null);
    }
  }
}
