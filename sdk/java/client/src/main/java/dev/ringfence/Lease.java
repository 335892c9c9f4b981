package dev.ringfence;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * A granted lease, which is renewed until it is released. Any thread may use it, and release it. If the handle is dropped, the lease is
 * released in the background, and the log says so.
 */
public final class Lease implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger("dev.ringfence");
  private static final Cleaner CLEANER =
      Cleaner.create(
          work -> {
            Thread thread = new Thread(work, "ringfence-cleaner");
            thread.setDaemon(true);
            // It lives for as long as the class: no application that is unloaded has to stay for it.
            thread.setContextClassLoader(null);
            return thread;
          });
  private static final int MAX_CLAIMS = 8_192;
  /** A release is told of after 5 s. It may have to wait for others, and begins late. */
  private static final long TOLD_WITHIN = Cluster.RETRY_FOR + 3_000 * Checks.MS;

  private final Held held;
  private final Engine engine;
  /** As long as there is a lease, there is its client. */
  @SuppressWarnings("unused")
  private final Ringfence client;

  private final Drop drop;

  private Lease(Ringfence client, Held held) {
    this.client = client;
    this.engine = client.engine();
    this.held = held;
    this.drop = new Drop(engine, held);
    CLEANER.register(this, drop);
  }

  static Lease of(Ringfence client, Held held) {
    return new Lease(client, held);
  }

  /**
   * The fencing token: send it with every access to what the lease protects.
   *
   * @return a number from 1 to 2^53 - 1
   */
  public long token() {
    return held.token;
  }

  /**
   * Its id. Anyone who knows it can renew and release the lease: keep it out of logs.
   *
   * @return a UUID
   */
  public String leaseId() {
    return held.leaseId;
  }

  /**
   * Its keys.
   *
   * @return in the order of the request
   */
  public List<String> keys() {
    return held.view.keys();
  }

  /**
   * How it stands now, by the clock.
   *
   * @return the state
   */
  public LeaseState state() {
    return held.state();
  }

  /**
   * How much longer it certainly lives.
   *
   * @return zero once it is lost
   */
  public Duration remaining() {
    return Duration.ofNanos(held.remaining());
  }

  /**
   * Why it is lost.
   *
   * @return {@code RELEASED} once it is released; nothing while it lives
   */
  public Optional<LossReason> lostReason() {
    return Optional.ofNullable(held.loss());
  }

  /**
   * The lowest token that may still be live on its only key, as last confirmed.
   *
   * @return the fence
   * @throws InvalidException if it has several keys
   */
  public long fence() {
    return fence(onlyKey());
  }

  /**
   * The lowest token that may still be live on a key, as last confirmed.
   *
   * @param key one of its keys
   * @return the fence
   * @throws InvalidException if the key is none of them
   */
  public long fence(String key) {
    Long fence = held.fences().get(key);
    if (fence == null) {
      throw new InvalidException("key", "is one of the lease's keys: " + keys());
    }
    return fence;
  }

  /**
   * The headers that show a guarded HTTP resource this lease, for its only key.
   *
   * @return the values by their names
   * @throws LostException if it is lost
   */
  public Map<String, String> headers() {
    return headers(onlyKey());
  }

  /**
   * The headers that show a guarded HTTP resource this lease.
   *
   * @param key one of its keys
   * @return the values by their names
   * @throws LostException if it is lost
   */
  public Map<String, String> headers(String key) {
    check();
    Map<String, String> headers = new LinkedHashMap<>();
    headers.put("Ringfence-Key", Text.segment(key));
    headers.put("Ringfence-Token", String.valueOf(token()));
    headers.put("Ringfence-Fence", String.valueOf(fence(key)));
    return headers;
  }

  /**
   * The {@code options} of a connection to PostgreSQL, or the variable PGOPTIONS of a program, whose writes then claim by themselves. The
   * table is to be protected {@code by_connection}. Connect anew for each lease, and {@code CALL ringfence.touch_all()} before the first
   * read.
   *
   * @return the options
   * @throws LostException if it is lost
   * @throws InvalidException if an older holder shares a key, as its fence rises and options do not, or if the keys take more than 8 KiB
   */
  public String postgresOptions() {
    check();
    Map<String, Long> fences = held.fences();
    if (fences.values().stream().anyMatch(fence -> fence != token())) {
      throw new InvalidException(
          "fence", "rises, and the options of a connection do not: an older holder shares a key");
    }
    String claims =
        fences.keySet().stream().sorted().map(key -> Text.segment(key) + "=" + token()).collect(Collectors.joining(","));
    if (claims.length() > MAX_CLAIMS) {
      throw new InvalidException(
          "keys", "take " + claims.length() + " of " + MAX_CLAIMS + " bytes as options of a connection");
    }
    return "-c ringfence.may_claim=" + claims;
  }

  /**
   * Fails if it is lost or released. No check stops a process that is paused after it: send the token.
   *
   * @throws LostException if it is lost
   */
  public void check() {
    LossReason lost = held.loss();
    if (lost != null) {
      throw new LostException(lost);
    }
  }

  /**
   * Waits until it is lost or released.
   *
   * @param timeout for how long at most
   * @return the reason; nothing if it still lives
   * @throws InterruptedException if the thread is interrupted
   */
  public Optional<LossReason> awaitLoss(Duration timeout) throws InterruptedException {
    try {
      return Optional.ofNullable(held.awaitLoss(Checks.nanos("timeout", timeout)));
    } finally {
      // Else it might be collected meanwhile, and so released.
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Renews it now. The client does that by itself.
   *
   * @throws LostException if it is lost
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public void renew() throws InterruptedException {
    engine.call(null, patience -> renewed(null, patience));
  }

  /**
   * Renews it now, with a bound of the call.
   *
   * @param timeout the bound
   * @throws TimedOutException if that is over
   * @throws LostException if it is lost
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public void renew(Duration timeout) throws InterruptedException {
    engine.call(Checks.nanos("timeout", timeout), patience -> renewed(null, patience));
  }

  /**
   * Renews it now, and changes its time-to-live.
   *
   * @param ttl from 0.1 s to 24 h
   * @param timeout the bound of the call
   * @throws TimedOutException if that is over
   * @throws LostException if it is lost
   * @throws RingfenceException as its subclasses say
   * @throws InterruptedException if the thread is interrupted
   */
  public void renewFor(Duration ttl, Duration timeout) throws InterruptedException {
    long ttlMs = Checks.ttlMs(ttl);
    engine.call(Checks.nanos("timeout", timeout), patience -> renewed(ttlMs, patience));
  }

  private Void renewed(Long ttlMs, Patience patience) throws InterruptedException {
    try {
      engine.renew(held, ttlMs, patience);
      return null;
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /**
   * The keys stay held, whoever leaves the lease, until this time has passed from now: a later wish takes the place of an earlier one.
   * Not after {@link #intoId}, nor once another handle has adopted the lease.
   *
   * @param time 24 h at most
   */
  public void holdAtLeast(Duration time) {
    long ms = Checks.holdAtLeastMs(time);
    held.leastUntil = ms == 0 ? null : engine.cluster.clock.now().plus(ms * Checks.MS);
  }

  /**
   * Releases the keys. A repeat does nothing. After {@link UnknownException}, {@link UnavailableException} and {@link
   * TimedOutException} the release is repeated in the background. With {@link LockRequest#holdAtLeast} the keys stay held until that
   * time has passed. If the thread is interrupted, it stops waiting, the release goes on, and the flag is kept.
   *
   * @throws LostException if the lease was lost before: what was done under it may have met another holder
   * @throws RingfenceException as its subclasses say
   */
  public void release() {
    release(null);
  }

  /**
   * The same, with a bound of the call.
   *
   * @param timeout the bound
   * @throws TimedOutException if that is over
   * @throws LostException if the lease was lost before
   * @throws RingfenceException as its subclasses say
   */
  public void release(Duration timeout) {
    Long bound = timeout == null ? null : Checks.nanos("timeout", timeout);
    if (drop.isLeft.compareAndSet(false, true) && !held.isReleased()) {
      LossReason lost = held.loss();
      CompletableFuture<RingfenceException> told = engine.release(held, Held.By.HOLDER);
      held.leaveWorker();
      if (lost != null) {
        throw new LostException(lost);
      }
      await(told, bound);
    } else {
      held.leaveWorker();
    }
  }

  /** Waits for a release; if the thread was interrupted before, for a second at most. An interrupt ends the wait, and is kept. */
  private void await(CompletableFuture<RingfenceException> told, Long bound) {
    boolean wasInterrupted = Thread.interrupted();
    long most = Math.min(bound == null ? TOLD_WITHIN : bound, wasInterrupted ? Releases.LAST_CHANCE : Long.MAX_VALUE);
    try {
      RingfenceException error = told.get(most, TimeUnit.NANOSECONDS);
      if (error != null) {
        throw error;
      }
    } catch (InterruptedException error) {
      wasInterrupted = true;
    } catch (TimeoutException error) {
      if (!wasInterrupted) {
        throw bound == null
            ? new UnknownException("the release goes on in the background", held.leaseId)
            : new TimedOutException(bound, TimedOutException.Reason.TIMEOUT);
      }
    } catch (ExecutionException error) {
      throw new AssertionError("a release ends with its error as a result", error);
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /**
   * Releases the keys at the end of a block. What is unknown goes on in the background.
   *
   * @throws LostException if the lease was lost before: the block has not worked under it to the end
   */
  @Override
  public void close() {
    boolean isFirst = !drop.isLeft.get();
    LossReason lost = held.lossOfHolder();
    try {
      release();
    } catch (ClosedException | UnknownException | UnavailableException | RejectedException error) {
      LOG.log(System.Logger.Level.DEBUG, "the end of a block has not released its lease: {0}", error.getMessage());
    }
    if (isFirst && lost != null) {
      // `Ringfence.close` has released it.
      throw new LostException(lost);
    }
  }

  /**
   * Leaves the lease as it is: it ends with its ttl unless somebody adopts or releases it. This handle is released.
   *
   * @return its id, for {@link Ringfence#adopt}
   * @throws LostException if it is lost
   */
  public String intoId() {
    check();
    if (!engine.giveUp(held)) {
      // Somebody was faster, and may yet have to store the loss.
      throw new LostException(lostReason().orElse(LossReason.RELEASED));
    }
    drop.isLeft.set(true);
    held.leaveWorker();
    return held.leaseId;
  }

  @Override
  public String toString() {
    return "Lease[" + held + "]";
  }

  /** For a term of work that leads. */
  boolean isLost() {
    return held.lossOfHolder() != null;
  }

  boolean hasInterrupted() {
    return held.hasInterrupted();
  }

  /** For tests, which wait for its end without a handle. */
  Held held() {
    return held;
  }

  private String onlyKey() {
    if (keys().size() != 1) {
      throw new InvalidException("key", "is one of the lease's keys: " + keys());
    }
    return keys().get(0);
  }
}
