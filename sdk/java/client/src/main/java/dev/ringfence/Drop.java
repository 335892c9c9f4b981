package dev.ringfence;

import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

/** What is done once nobody has the handle any more, and again once an adoption meanwhile has failed. It does not refer to it. */
final class Drop implements Runnable {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");

  /** Whether the lease was left in another way. */
  final AtomicBoolean isLeft = new AtomicBoolean();

  private final Engine engine;
  private final Held held;

  Drop(Engine engine, Held held) {
    this.engine = engine;
    this.held = held;
  }

  @Override
  public void run() {
    if (isLeft.compareAndSet(false, true)) {
      boolean isLeak = held.loss() == null;
      held.leaveWorker();
      if (engine.drop(held) && isLeak) {
        String keys = held.view.keys().stream().map(Text::quoted).collect(Collectors.joining(", "));
        LOG.log(
            System.Logger.Level.WARNING,
            "a lease on " + keys + " was dropped without a release: it is released in the background");
      }
    }
  }
}
