package dev.ringfence;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** What a client does. The handles of leases call it, on any thread. */
final class Engine {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final long HURRIES_AFTER = 300 * Checks.MS;
  private static final long ENDS_WITHIN = 2_000 * Checks.MS;
  private static final long LOOK_INTERVAL = 5 * Checks.MS;
  /** Those that have to give back what waits when the program ends. */
  private static final Set<Engine> ALL = Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

  static {
    Thread end = new Thread(Engine::endAll, "ringfence-end");
    end.setContextClassLoader(null);
    Runtime.getRuntime().addShutdownHook(end);
  }

  final Workers workers = new Workers();
  final Cluster cluster;
  final Keeper keeper;
  final Teller teller;
  private final Leaving leaving;
  /** The calls that wait. */
  private final Set<Patience> pending = ConcurrentHashMap.newKeySet();

  private final CompletableFuture<Integer> closed = new CompletableFuture<>();

  Engine(List<String> urls, Tls tls, String credential, boolean learns, Clock clock, Hooks hooks) {
    cluster = new Cluster(urls, tls, credential, learns, clock, workers);
    keeper = new Keeper(cluster);
    leaving = new Leaving(cluster, keeper);
    teller = new Teller(hooks, workers);
    ALL.add(this);
  }

  /** A call of a user. */
  @FunctionalInterface
  interface Call<T> {
    T run(Patience patience) throws InterruptedException;
  }

  /** Makes a call, which the end of the client ends. {@code bound}: in nanoseconds; {@code null} for none. */
  <T> T call(Long bound, Call<T> call) throws InterruptedException {
    Patience patience = bound == null ? Patience.endless() : Patience.of(bound);
    pending.add(patience);
    try {
      if (cluster.isClosed) {
        throw new ClosedException();
      }
      return call.run(patience);
    } finally {
      pending.remove(patience);
    }
  }

  /** Acquires a lease, and keeps it. */
  Held acquire(Options options, Patience patience) throws InterruptedException {
    long asked = Clock.nanos();
    Confirmation confirmation = new Acquire(cluster, keeper, options, patience, teller).run();
    Moment now = cluster.clock.now();
    long least = options.holdAtLeastMs * Checks.MS;
    Moment holdUntil = options.maxHoldMs == null ? null : confirmation.sent().plus(options.maxHoldMs * Checks.MS);
    Worker worker = options.interrupts ? new Worker(Thread.currentThread()) : null;
    Held held =
        new Held(
            confirmation,
            Lifetime.of(confirmation, holdUntil, options.renews),
            least > 0 ? now.plus(least) : null,
            cluster.clock,
            new Held.Reaction(options.onLost, worker),
            teller);
    cluster.register.add(held);
    keep(held);
    Duration time = Duration.ofNanos(Clock.nanos() - asked);
    teller.tell(false, hooks -> hooks.granted(held.view, time));
    return held;
  }

  /** Takes over a lease: renews it once, and keeps it. */
  Held adopt(String leaseId, Patience patience) throws InterruptedException {
    Register.Adoption adoption = cluster.register.adopts(leaseId);
    try {
      adoption.check();
      Confirmation first = cluster.renew(leaseId, null, null, patience);
      Lifetime lifetime = Lifetime.of(first, null, true);
      if (lifetime.loss(cluster.clock.now()) != null) {
        throw new LostException(LossReason.UNCONFIRMED);
      }
      Held held = new Held(first, lifetime, null, cluster.clock, Held.Reaction.NONE, teller);
      Held before = adoption.confirm(held);
      if (before != null) {
        takeFrom(before);
      }
      keep(held);
      return held;
    } finally {
      Held dropped = adoption.end();
      if (dropped != null) {
        Workers.guarded(new Drop(this, dropped)).run();
      }
    }
  }

  /** Another handle has its lease now, and may release it at any time. */
  private void takeFrom(Held held) {
    keeper.remove(held);
    if (held.isDropped) {
      held.leave();
    } else {
      held.lose(LossReason.UNCONFIRMED);
      held.tell();
    }
  }

  private void keep(Held held) {
    keeper.add(held);
    if (cluster.isClosed) {
      // It may have been granted too late for `close` to see it.
      release(held, Held.By.CLIENT);
      throw new ClosedException();
    }
  }

  /** Renews a lease now; for its ttl, if {@code ttlMs} is {@code null}. */
  void renew(Held held, Long ttlMs, Patience patience) throws InterruptedException {
    check(held);
    try {
      held.confirm(cluster.renew(held.leaseId, held.view.keys(), ttlMs, patience));
    } catch (LostException lost) {
      held.lose(lost.reason());
    }
    keeper.wake();
    check(held);
  }

  /**
   * Releases a lease, whatever becomes of the caller, unless it has left its handle already. What it returns ends with {@code null} or
   * the error.
   */
  CompletableFuture<RingfenceException> release(Held held, Held.By by) {
    return cluster.register.releases(held) ? released(held, by) : CompletableFuture.completedFuture(null);
  }

  /** The same for a handle that nobody has any more. Returns whether it is released. */
  boolean drop(Held held) {
    boolean isReleased = cluster.register.drops(held);
    if (isReleased) {
      released(held, Held.By.HOLDER);
    }
    return isReleased;
  }

  private CompletableFuture<RingfenceException> released(Held held, Held.By by) {
    try {
      return leaving.begin(held, held.release(by));
    } finally {
      cluster.register.closes(held.leaseId);
      held.tellHooks();
    }
  }

  /** Leaves a lease as it is, to whoever has its id. Returns whether the handle still had it. */
  boolean giveUp(Held held) {
    boolean hadIt = cluster.register.leaves(held);
    if (hadIt) {
      keeper.remove(held);
      held.leave();
    }
    return hadIt;
  }

  /** Ends what waits, and releases all leases, within this time. Waits for that, for so long at most. Returns how many are left. */
  int close(long within, long wait) throws InterruptedException {
    boolean isFirst;
    synchronized (this) {
      isFirst = !cluster.isClosed;
      cluster.isClosed = true;
    }
    if (isFirst) {
      pending.forEach(patience -> patience.stop(new ClosedException()));
      for (Held held : cluster.register.handles()) {
        release(held, Held.By.CLIENT);
      }
      // It goes on if the caller is interrupted.
      Thread closing = new Thread(() -> finish(within), "ringfence-close");
      closing.setDaemon(true);
      closing.start();
    }
    try {
      return closed.get(Math.min(within + ENDS_WITHIN, wait), TimeUnit.NANOSECONDS);
    } catch (ExecutionException | TimeoutException error) {
      return left();
    }
  }

  private void finish(long within) {
    int left = 0;
    try {
      long until = Clock.nanos() + within;
      settle(until);
      left = leaving.end();
      awaitUntil(cluster.releases.settled(), until);
      left += cluster.releases.count();
    } finally {
      cluster.releases.close();
      keeper.end();
      cluster.disconnect();
      List<Runnable> untold = teller.end();
      workers.end();
      ALL.remove(this);
      closed.complete(left);
      untold.forEach(call -> Workers.guarded(call).run());
      if (left > 0) {
        warn(left + " leases could not be released in time: they end with their ttl");
      }
    }
  }

  /** A log of the program's may fail. */
  private static void warn(String text) {
    Workers.guarded(() -> LOG.log(System.Logger.Level.WARNING, text)).run();
  }

  /** How many leases it has, or releases. */
  int left() {
    return keeper.leases().size() + cluster.releases.count();
  }

  /** Waits until what waited has given back, and what was left is held or released. */
  private void settle(long until) {
    while (!pending.isEmpty() && Clock.nanos() < until) {
      awaitUntil(new CompletableFuture<>(), Math.min(until, Clock.nanos() + LOOK_INTERVAL));
    }
    awaitUntil(leaving.settled(), until);
    awaitUntil(cluster.releases.settled(), until);
  }

  private static void awaitUntil(Future<?> something, long until) {
    try {
      something.get(Math.max(0, until - Clock.nanos()), TimeUnit.NANOSECONDS);
    } catch (InterruptedException | ExecutionException | TimeoutException error) {
      // Nobody interrupts this thread.
    }
  }

  /** The program ends: what waits is given back, and what is being released is, within a second or two. */
  private static void endAll() {
    List<Engine> engines;
    synchronized (ALL) {
      engines = List.copyOf(ALL);
    }
    long until = Clock.nanos() + ENDS_WITHIN;
    for (Engine engine : engines) {
      engine.pending.forEach(patience -> patience.stop(new ClosedException()));
      engine.workers.later(HURRIES_AFTER, engine.cluster.releases::hurry);
    }
    for (Engine engine : engines) {
      engine.settle(until);
      if (engine.cluster.releases.count() > 0) {
        warn("leases could not be released before the program ended: they end with their ttl");
      }
    }
  }

  private static void check(Held held) {
    LossReason lost = held.loss();
    if (lost != null) {
      throw new LostException(lost);
    }
  }
}
