package dev.ringfence;

import java.util.function.Consumer;

/** Calls what the user has written. It fails with nothing, and waits for nothing. */
final class Teller {
  static final Teller SILENT = new Teller(null, null);
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final int MOST = 10_000;
  private static final long PAUSE = 1_000 * Checks.MS;

  private final Hooks hooks;
  private final Workers workers;

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

  /** Calls back after a loss. If there is no room for a thread, there may be later. */
  void callback(Consumer<Loss> onLost, Loss loss) {
    if (!workers.callback(guarded("callback for a loss", () -> onLost.accept(loss)))) {
      workers.later(PAUSE, () -> callback(onLost, loss));
    }
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
