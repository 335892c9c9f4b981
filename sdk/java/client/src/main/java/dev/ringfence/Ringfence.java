package dev.ringfence;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/**
 * A client of a Ringfence cluster: leases on keys, with fencing tokens.
 *
 * <pre>{@code
 * try (Ringfence client = Ringfence.connect("http://10.0.0.1:7400", "http://10.0.0.2:7400");
 *     Lease lease = client.lock("accounts/42").acquire()) {
 *   save(lease.token());
 * }
 * }</pre>
 *
 * <p>Threads may share a client, and any thread may use any handle. It sends nothing by itself. Its threads, which renew leases, are
 * daemons, and end some seconds after the last lease: a caller that hangs keeps its lease, unless {@link LockRequest#maxHold} limits
 * that.
 */
public final class Ringfence implements AutoCloseable {
  private static final Duration CLOSES_WITHIN = Duration.ofSeconds(5);
  private final Engine engine;

  private Ringfence(Builder builder) {
    engine = builder.engine();
  }

  /**
   * A client of the cluster whose nodes are at these URLs.
   *
   * @param urls {@code https://host:port} of nodes; some of them are enough
   * @return the client
   * @throws InvalidException if a URL is none
   */
  public static Ringfence connect(String... urls) {
    return builder(urls).connect();
  }

  /**
   * A client with more than URLs.
   *
   * @param urls {@code https://host:port} of nodes; some of them are enough
   * @return a builder
   */
  public static Builder builder(String... urls) {
    return new Builder(Arrays.asList(urls));
  }

  /** How a client reaches its cluster. Credential and files are for https URLs. */
  public static final class Builder {
    private final List<String> urls;
    private String credential;
    private Path ca;
    private Path cert;
    private Path key;
    private Hooks hooks;
    private Clock clock = Clock.SYSTEM;

    private Builder(List<String> urls) {
      this.urls = urls;
    }

    /**
     * Shows who the client is. It is sent only to nodes whose certificates were verified.
     *
     * @param secret the credential
     * @return this
     */
    public Builder credential(String secret) {
      credential = secret;
      return this;
    }

    /**
     * The authorities of the nodes' certificates. By default, those that Java trusts.
     *
     * @param pem a file in PEM, which is read again when it changes
     * @return this
     */
    public Builder authority(Path pem) {
      ca = pem;
      return this;
    }

    /**
     * The client's certificate.
     *
     * @param pem a file with the certificate, and those of its authorities, in PEM
     * @param keyPem a file with its key in PEM, not encrypted
     * @return this
     */
    public Builder certificate(Path pem, Path keyPem) {
      cert = pem;
      key = keyPem;
      return this;
    }

    /**
     * Is told what becomes of leases.
     *
     * @param listener the hooks
     * @return this
     */
    public Builder hooks(Hooks listener) {
      hooks = listener;
      return this;
    }

    /** For tests, which make it jump. */
    Builder clock(Clock played) {
      clock = played;
      return this;
    }

    /**
     * Makes the client.
     *
     * @return the client
     * @throws InvalidException if something of it is wrong, such as a file
     */
    public Ringfence connect() {
      return new Ringfence(this);
    }

    private Engine engine() {
      boolean isHttps = new Nodes(urls, false, url -> true).isHttps;
      if (credential != null) {
        Checks.credential(credential);
      }
      String plain = credential != null ? "credential" : ca != null ? "ca" : cert != null ? "cert" : null;
      if (plain != null && !isHttps) {
        throw new InvalidException(
            plain, "is for https URLs, not http: over a plain connection anybody could read and write");
      }
      // With the authorities that Java trusts anybody can have a certificate for the host that a response names.
      boolean learns = credential == null || ca != null;
      return new Engine(urls, isHttps ? new Tls(ca, cert, key) : null, credential, learns, clock, hooks);
    }
  }

  /**
   * Asks for exclusive leases on some keys, which are granted together.
   *
   * @param keys the keys
   * @return the request, which can be used again and again, by several threads
   * @throws InvalidException if a key is none
   */
  public LockRequest lock(String... keys) {
    return lock(Arrays.stream(keys).map(Claim::exclusive).toArray(Claim[]::new));
  }

  /**
   * Asks for leases on some keys, which are granted together.
   *
   * @param claims the keys, and whether others may share them
   * @return the request, which can be used again and again, by several threads
   * @throws InvalidException if a key is none
   */
  public LockRequest lock(Claim... claims) {
    return new LockRequest(this, new Options(claims));
  }

  /**
   * Takes over a lease by its id, perhaps from another process: renews it once, and from then on. Nobody else may renew or release it:
   * once this returns, it is lost for any other handle of this client ({@code UNCONFIRMED}). What was asked of that, such as {@code
   * maxHold} and {@code onLost}, does not come along.
   *
   * @param leaseId what {@link Lease#intoId} returned
   * @return the lease
   * @throws LostException if it has ended, or this client is releasing it
   * @throws InterruptedException if the thread is interrupted
   */
  public Lease adopt(String leaseId) throws InterruptedException {
    String checked = Checks.leaseId(leaseId);
    return Lease.of(this, engine.call(null, patience -> engine.adopt(checked, patience)));
  }

  /**
   * Who holds the key now, as the cluster says. It may be another by the time that you look.
   *
   * @param key the key
   * @return its holders: none if it is free
   * @throws InterruptedException if the thread is interrupted
   */
  public List<Blocker> holders(String key) throws InterruptedException {
    String checked = Checks.key(key, "key");
    return engine.call(null, patience -> engine.cluster.holders(checked, patience));
  }

  /**
   * Releases all leases, ends what waits, and returns once releases have been answered, after 5 s at the latest. Whoever works under a
   * lease is told that it is lost ({@code RELEASED}). If the thread is interrupted, it stops waiting, after a second at the
   * latest if it was interrupted before, and the flag is kept.
   */
  @Override
  public void close() {
    close(CLOSES_WITHIN);
  }

  /**
   * The same, within a time of your own.
   *
   * @param within how long it waits at most
   * @return how many leases it could not release, which end with their ttl; the log says so, too
   */
  public int close(Duration within) {
    long nanos = Checks.nanos("within", within);
    boolean wasInterrupted = Thread.interrupted();
    try {
      return engine.close(nanos, wasInterrupted ? Releases.LAST_CHANCE : Long.MAX_VALUE);
    } catch (InterruptedException error) {
      wasInterrupted = true;
      return engine.left();
    } finally {
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  Engine engine() {
    return engine;
  }
}
