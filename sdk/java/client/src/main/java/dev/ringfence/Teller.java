package dev.ringfence;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Predicate;

/** Calls what the user has written. It fails with nothing, and waits for nothing. */
final class Teller {
  static final Teller SILENT = new Teller(null, null);
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final int MOST = 10_000;
  private static final long PAUSE = 1_000 * Checks.MS;

  private final Hooks hooks;
  private final Workers workers;
  /** What found no room for a thread. */
  private final List<Untold> untold = new ArrayList<>();

  private record Untold(Predicate<Runnable> lane, Runnable call) {}

  Teller(Hooks hooks, Workers workers) {
    this.hooks = hooks;
    this.workers = workers;
  }

  /** Calls a hook. {@code mayDrop}: nobody counts on it, so behind a hook that blocks it is left out. */
  void tell(boolean mayDrop, Consumer<Hooks> call) {
    if (hooks != null && !(mayDrop && workers.waitingHooks() >= MOST)) {
      workers.hook(guarded("hook", () -> call.accept(hooks)));
    }
  }

  /** Calls back after a loss. */
  void callback(Consumer<Loss> onLost, Loss loss) {
    begin(workers::callback, guarded("callback for a loss", () -> onLost.accept(loss)));
  }

  /** Interrupts whoever works under a lease that is lost. */
  void interrupt(Worker worker) {
    begin(workers::interrupt, guarded("channel that an interrupt closes", worker::interrupt));
  }

  /** If there is no room for a thread, there may be later. */
  synchronized void begin(Predicate<Runnable> lane, Runnable call) {
    if (!lane.test(call)) {
      untold.add(new Untold(lane, call));
      if (untold.size() == 1) {
        workers.later(PAUSE, this::retry);
      }
    }
  }

  private synchronized void retry() {
    List<Untold> some = List.copyOf(untold);
    untold.clear();
    some.forEach(one -> begin(one.lane, one.call));
  }

  /** Tries a last time. Returns what has still no room: whoever calls this has a thread. */
  synchronized List<Runnable> end() {
    retry();
    List<Runnable> rest = untold.stream().map(Untold::call).toList();
    untold.clear();
    return rest;
  }

  private static Runnable guarded(String what, Runnable call) {
    return () -> {
      try {
        call.run();
      } catch (Throwable error) {
        LOG.log(System.Logger.Level.ERROR, "a " + what + " has failed", error);
      }
    };
  }
}
