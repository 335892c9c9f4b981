package dev.ringfence;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * The state of a lease. Its handle, the keeper and those who wait for its loss share it, on many threads. Nothing in it refers to
 * the handle, which may be collected.
 *
 * <p><strong>No lock.</strong> What is known is one immutable snapshot, which is swapped for another.
 *
 * <p><strong>A loss is final.</strong> Whoever finds one, by the clock or by an answer, stores it, and the first one counts. A
 * confirmation that arrives later finds it there.
 *
 * <p><strong>Safety first, then user code.</strong> {@code tell} first wakes and interrupts what has to stop, and then has the user's
 * callback called, on a thread that renews nothing.
 */
final class Held {
  private static final long LOOK_INTERVAL = 500 * Checks.MS;

  /** Who has released it. */
  enum By {
    /** Its holder. */
    HOLDER,
    /** The client, under its holder. */
    CLIENT
  }

  private record Seen(Lifetime lifetime, Map<String, Long> fences) {}

  private record End(LossReason reason, By releasedBy) {}

  /** What the user wants to happen after a loss. */
  record Reaction(Consumer<Loss> onLost, Worker worker) {
    static final Reaction NONE = new Reaction(null, null);
  }

  final String leaseId;
  final long token;
  /** Until when its keys stay held, whenever its holder releases it; {@code null} for no such time. */
  volatile Moment leastUntil;
  /** Whether nobody has its handle any more. */
  volatile boolean isDropped;

  final LeaseView view;
  private final Clock clock;
  private final Reaction reaction;
  private final Teller teller;
  private final AtomicReference<Seen> seen;
  private final AtomicReference<End> end = new AtomicReference<>();
  private final CountDownLatch told = new CountDownLatch(1);
  private final AtomicBoolean hasStopped = new AtomicBoolean();
  private final AtomicBoolean hasToldHooks = new AtomicBoolean();

  Held(Confirmation first, Lifetime lifetime, Moment leastUntil, Clock clock, Reaction reaction, Teller teller) {
    leaseId = first.grant().leaseId();
    token = first.grant().token();
    this.leastUntil = leastUntil;
    this.clock = clock;
    this.reaction = reaction;
    this.teller = teller;
    seen = new AtomicReference<>(new Seen(lifetime, first.grant().fences()));
    view = new LeaseView(List.copyOf(first.grant().fences().keySet()), token);
  }

  /** The same lease, which is left: nobody is told of it. */
  private Held(Held left) {
    leaseId = left.leaseId;
    token = left.token;
    leastUntil = left.leastUntil;
    clock = left.clock;
    reaction = Reaction.NONE;
    teller = Teller.SILENT;
    seen = new AtomicReference<>(left.seen.get());
    view = left.view;
  }

  Held standIn() {
    return new Held(this);
  }

  /** Whether its holder, or the client, released it. */
  boolean isReleased() {
    End known = end.get();
    return known != null && known.releasedBy != null;
  }

  /** How it stands now: it reads the clock, whatever timers did. */
  LeaseState state() {
    // A snapshot that is newer than the time says nothing wrong, and an older one could.
    Moment now = clock.now();
    if (loss() != null) {
      return isReleased() ? LeaseState.RELEASED : LeaseState.LOST;
    }
    return seen.get().lifetime.state(now);
  }

  /** Why it is lost, or {@code RELEASED}; {@code null} while it lives. */
  LossReason loss() {
    End known = end.get();
    if (known != null) {
      return known.reason;
    }
    Moment now = clock.now();
    LossReason reason = seen.get().lifetime.loss(now);
    return reason == null ? null : ends(new End(reason, null)).reason;
  }

  /** Why it ended before its holder released it; {@code null} if it has not. */
  LossReason lossOfHolder() {
    LossReason reason = loss();
    End known = end.get();
    return known != null && known.releasedBy == By.HOLDER ? null : reason;
  }

  /** How much longer it certainly lives, in nanoseconds. */
  long remaining() {
    Moment now = clock.now();
    return loss() != null ? 0 : seen.get().lifetime.remaining(now);
  }

  /** The fence of each key, as last confirmed. */
  Map<String, Long> fences() {
    return seen.get().fences;
  }

  Lifetime lifetime() {
    return seen.get().lifetime;
  }

  /** Waits until it is lost or released, for so long at most. Returns the reason; {@code null} if it lives. */
  LossReason awaitLoss(long nanos) throws InterruptedException {
    long begun = Clock.nanos();
    LossReason reason = loss();
    for (long left = nanos; reason == null && left > 0; left = nanos - (Clock.nanos() - begun)) {
      // A timer may be slower than the clock of leases.
      long nap = Math.min(Math.min(left, LOOK_INTERVAL), remaining() + Checks.MS);
      if (told.await(nap, TimeUnit.NANOSECONDS)) {
        return loss();
      }
      reason = loss();
    }
    return reason;
  }

  /** The cluster has confirmed it. Whatever order answers come in, the latest end counts, and the highest fence: that never falls. */
  void confirm(Confirmation confirmation) {
    if (loss() != null) {
      return;
    }
    seen.updateAndGet(
        before -> {
          Map<String, Long> fences = new LinkedHashMap<>(before.fences);
          confirmation.grant().fences().forEach((key, fence) -> fences.merge(key, fence, Math::max));
          return new Seen(before.lifetime.confirmed(confirmation), Collections.unmodifiableMap(fences));
        });
    teller.tell(true, hooks -> hooks.renewed(view));
  }

  /** It could not be renewed for now. */
  void failed(String why) {
    teller.tell(true, hooks -> hooks.failed(view, why));
  }

  /** It has ended. */
  void lose(LossReason reason) {
    if (loss() == null) {
      ends(new End(reason, null));
    }
  }

  /**
   * Ends it. Returns why it was lost before; {@code null} if it was not. Whoever calls this lets the hooks know, once the release has
   * begun.
   */
  LossReason release(By by) {
    if (loss() == null) {
      ends(new End(LossReason.RELEASED, by));
    }
    stop();
    return isReleased() ? null : loss();
  }

  /** Its holder leaves it to whoever has its id. */
  void leave() {
    hasToldHooks.set(true);
    release(By.HOLDER);
  }

  /** Tells that it has ended. */
  void tell() {
    stop();
    tellHooks();
  }

  void tellHooks() {
    End known = end.get();
    if (known != null && hasToldHooks.compareAndSet(false, true)) {
      boolean isRelease = known.releasedBy != null;
      teller.tell(false, hooks -> {
        if (isRelease) {
          hooks.released(view);
        } else {
          hooks.lost(view, known.reason);
        }
      });
    }
  }

  /** No interrupt reaches its worker any more. */
  void leaveWorker() {
    if (reaction.worker != null) {
      reaction.worker.leave();
    }
  }

  /** The same, for a worker that has taken the interrupt. Returns whether there was one. */
  boolean hasInterrupted() {
    return reaction.worker != null && reaction.worker.ends();
  }

  private void stop() {
    End known = end.get();
    if (known == null || !hasStopped.compareAndSet(false, true)) {
      return;
    }
    told.countDown();
    if (known.releasedBy == By.HOLDER) {
      return;
    }
    if (reaction.worker != null && !reaction.worker.isCurrent()) {
      teller.interrupt(reaction.worker);
    }
    if (reaction.onLost != null) {
      teller.callback(reaction.onLost, new Loss(view.keys(), token, known.reason));
    }
  }

  private End ends(End wanted) {
    return end.compareAndSet(null, wanted) ? wanted : end.get();
  }

  @Override
  public String toString() {
    return "keys=" + view.keys() + " token=" + token + " " + state();
  }
}
