package dev.ringfence;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/** Asks for leases on some keys. It does not change: each method returns another one, and each acquire makes a lease of its own. */
public final class LockRequest {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final Duration AT_ONCE = Duration.ZERO;

  private final Ringfence client;
  private final Engine engine;
  private final Options options;

  LockRequest(Ringfence client, Options options) {
    this.client = client;
    this.engine = client.engine();
    this.options = options;
  }

  private LockRequest with(Consumer<Options> change) {
    return new LockRequest(client, options.changed(change));
  }

  /**
   * How long others wait if this process vanishes: 15 s by default.
   *
   * @param ttl from 0.1 s to 24 h
   * @return the changed request
   */
  public LockRequest ttl(Duration ttl) {
    long ms = Checks.ttlMs(ttl);
    return with(changed -> changed.ttlMs = ms);
  }

  /**
   * How long to wait in the queue, which is first come, first served: by default for as long as it takes. With zero, {@link #acquire()}
   * tries once, and throws a {@link HeldException}.
   *
   * @param time how long
   * @return the changed request
   */
  public LockRequest waitAtMost(Duration time) {
    long ms = Checks.ms("wait", time);
    return with(changed -> changed.waitMs = ms);
  }

  /**
   * A public label: who holds it.
   *
   * @param label at most 256 bytes
   * @return the changed request
   */
  public LockRequest holder(String label) {
    String checked = Checks.holder(label);
    return with(changed -> changed.holder = checked);
  }

  /**
   * Public labels.
   *
   * @param labels at most 4,096 bytes
   * @return the changed request
   */
  public LockRequest metadata(Map<String, String> labels) {
    Map<String, String> checked = Checks.metadata(labels);
    return with(changed -> changed.metadata = checked);
  }

  /**
   * After this time the lease is lost, even while it is renewed: so that a holder that hangs loses it.
   *
   * @param time more than 0
   * @return the changed request
   */
  public LockRequest maxHold(Duration time) {
    long ms = Checks.ms("maxHold", time);
    if (ms == 0) {
      throw new InvalidException("maxHold", "must be more than 0");
    }
    return with(changed -> changed.maxHoldMs = ms);
  }

  /**
   * The keys stay held, whoever leaves the lease, until this time has passed since the grant: for a job that is quick, and must not run
   * again on a machine whose clock is late. Not after {@link Lease#intoId}, nor once another handle has adopted the lease.
   *
   * @param time 24 h at most
   * @return the changed request
   */
  public LockRequest holdAtLeast(Duration time) {
    long ms = Checks.holdAtLeastMs(time);
    return with(changed -> changed.holdAtLeastMs = ms);
  }

  /**
   * The client does not renew the lease by itself.
   *
   * @return the changed request
   */
  public LockRequest withoutRenewal() {
    return with(changed -> changed.renews = false);
  }

  /**
   * Is called if the lease is lost before its holder has released it, on a thread that renews nothing. At most 64 run at once.
   *
   * @param callback what to call
   * @return the changed request
   */
  public LockRequest onLost(Consumer<Loss> callback) {
    return with(changed -> changed.onLost = callback);
  }

  /**
   * The thread that acquires a lease is interrupted if the lease is lost, until it is released: work that waits ends then. What is left
   * of that interrupt is taken back when that thread releases the lease, and so is one of your own that came since: a flag does not
   * tell whose it is. If the thread has an {@code interrupt} of its own that takes more than 0.1 s, it may come after the release.
   *
   * @return the changed request
   */
  public LockRequest interruptOnLoss() {
    return with(changed -> changed.interrupts = true);
  }

  /**
   * Acquires a lease: waits its turn. If the thread is interrupted, the place, or the grant, is given back.
   *
   * @return the lease
   * @throws HeldException if a key is not free, and the wait is zero
   * @throws TimedOutException if the wait is over
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public Lease acquire() throws InterruptedException {
    return acquire(options, null);
  }

  /**
   * The same, with a bound of the whole call.
   *
   * @param timeout the bound
   * @return the lease
   * @throws TimedOutException if the wait, or the time of the call, is over
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public Lease acquire(Duration timeout) throws InterruptedException {
    return acquire(options, Checks.nanos("timeout", timeout));
  }

  /**
   * Tries once.
   *
   * @return the lease; nothing if a key is not free
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public Optional<Lease> tryAcquire() throws InterruptedException {
    try {
      return Optional.of(waitAtMost(AT_ONCE).acquire());
    } catch (HeldException held) {
      return Optional.empty();
    }
  }

  /**
   * Waits its turn for so long at most. The time bounds the whole call, also while no node answers.
   *
   * @param timeout how long; tries once if it is zero, and then takes as long as {@link #tryAcquire()}
   * @return the lease; nothing if it was not granted in time
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public Optional<Lease> tryAcquire(Duration timeout) throws InterruptedException {
    long nanos = Checks.nanos("timeout", timeout);
    if (nanos == 0) {
      return tryAcquire();
    }
    try {
      return Optional.of(acquire(options, nanos));
    } catch (TimedOutException | HeldException late) {
      return Optional.empty();
    }
  }

  /**
   * Runs work as the leader, and returns its result. The key is the seat. The work runs on this thread, and with {@link
   * #interruptOnLoss} on one of its own, as does what is told of its errors.
   *
   * <p>The work finds out that it leads no longer by {@link Lease#check}, whose {@link LostException} it lets through, or, with {@link
   * #interruptOnLoss}, by an interrupt. Once it has ended, it stands for election again. What the work throws after the loss, and a
   * guard's {@link StaleException} at any time, goes to the log. Any other exception of the work ends the race. The lease is released
   * only after the work has ended. To end the race, interrupt the thread that called this: the work is interrupted, and waited for.
   *
   * @param work what the leader does
   * @param <T> its result
   * @param <E> what it may throw
   * @return the result of the work
   * @throws E what the work throws while it leads
   * @throws InterruptedException if the thread is interrupted
   */
  public <T, E extends Exception> T lead(Work<T, E> work) throws E, InterruptedException {
    return lead(
        work,
        error ->
            LOG.log(
                System.Logger.Level.WARNING,
                "work failed after its lease was lost, and stands for election again: " + error,
                error));
  }

  /**
   * The same, and what would go to the log is reported.
   *
   * @param work what the leader does
   * @param onError is told what the work throws after a loss
   * @param <T> its result
   * @param <E> what it may throw
   * @return the result of the work
   * @throws E what the work throws while it leads
   * @throws InterruptedException if the thread is interrupted
   */
  public <T, E extends Exception> T lead(Work<T, E> work, Consumer<? super Exception> onError)
      throws E, InterruptedException {
    Race<T, E> race = new Race<>(this, work, onError);
    return options.interrupts ? race.runApart() : race.run();
  }

  private Lease acquire(Options wanted, Long bound) throws InterruptedException {
    wanted.check();
    return Lease.of(client, engine.call(bound, patience -> engine.acquire(wanted, patience)));
  }
}
