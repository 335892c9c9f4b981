package dev.ringfence;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The rules of a cluster, in memory: who has which key, who waits for it, and what a node answers. For tests of programs.
 *
 * <p>A lease fits a key if its mode goes together with those of all that came before it on that key, be they holders or waiters. So
 * nobody overtakes, and only an end lets others in. Each grant, each end, and each time that a lease enters a queue takes the next
 * number; that of the grant is the token. Whoever calls this has the monitor of {@link FakeCluster}, and passes the time.
 */
final class FakeTable {
  private static final long KEPT_MS = 5_000;

  /** What a node answers: a status, and a body, which may be {@code null}. */
  record Result(int status, Object body) {
    static Result problem(String name, int status, String detail, Map<String, ?> more) {
      Map<String, Object> body = new LinkedHashMap<>();
      body.put("type", "urn:ringfence:problem:" + name);
      body.put("title", name);
      body.put("status", status);
      body.put("detail", detail);
      body.putAll(more);
      return new Result(status, body);
    }
  }

  private static final class Entry {
    final String id;
    final List<Claim> claims;
    final String holder;
    long ttlMs;
    /** Once it is granted; 0 before. */
    long token;
    /** Until when it lives, or keeps its place. */
    long untilMs;

    Entry(String id, List<Claim> claims, String holder, long ttlMs) {
      this.id = id;
      this.claims = claims;
      this.holder = holder;
      this.ttlMs = ttlMs;
    }

    Claim claim(String key) {
      return claims.stream().filter(claim -> claim.key().equals(key)).findFirst().orElse(null);
    }
  }

  /** In the order of their coming. */
  private final Map<String, Entry> leases = new LinkedHashMap<>();

  private final Map<String, String> ended = new LinkedHashMap<>();
  private long number = 1_000;
  private long nowMs;

  /** Ends what has ended by then. */
  void run(long now) {
    nowMs = Math.max(nowMs, now);
    while (true) {
      Entry due = leases.values().stream().min(Comparator.comparing(one -> one.untilMs)).orElse(null);
      if (due == null || due.untilMs > nowMs) {
        return;
      }
      end(due, due.token == 0 ? "timed-out" : "expired", due.untilMs);
    }
  }

  /** Acquires, or keeps its place: then the status is 202, and whoever waits asks again. */
  Result acquire(String id, Map<?, ?> wanted) {
    List<Claim> claims = claims(wanted.get("keys"));
    boolean keepsPlace = Boolean.TRUE.equals(wanted.get("keep_place"));
    long waitMs = wanted.get("wait_ms") instanceof Long ms ? ms : 0;
    long untilMs = nowMs + waitMs + (keepsPlace ? KEPT_MS : 0);
    Entry known = leases.get(id);
    if (known == null && ended.containsKey(id)) {
      return gone(ended.get(id));
    }
    if (known == null) {
      long ttlMs = wanted.get("ttl_ms") instanceof Long ms ? ms : 15_000;
      known = new Entry(id, claims, wanted.get("holder") instanceof String holder ? holder : null, ttlMs);
      boolean isFree = fits(known);
      if (!isFree && untilMs == nowMs) {
        return held(known);
      }
      leases.put(id, known);
      number++;
      if (isFree) {
        grant(known, nowMs);
        return new Result(201, grantOf(known));
      }
    } else if (!known.claims.equals(claims)) {
      return Result.problem("lease-mismatch", 409, "this lease_id was used with other keys: use a new one", Map.of());
    }
    if (known.token > 0) {
      return new Result(200, grantOf(known));
    }
    known.untilMs = Math.max(known.untilMs, untilMs);
    return waiting(known);
  }

  /** How it stands with a lease that waits: granted, waiting, or gone. */
  Result look(String id) {
    Entry lease = leases.get(id);
    if (lease == null) {
      return gone(ended.getOrDefault(id, "released"));
    }
    return lease.token > 0 ? new Result(201, grantOf(lease)) : waiting(lease);
  }

  Result renew(String id, Object ttlMs) {
    Entry lease = leases.get(id);
    if (lease == null) {
      String how = ended.get(id);
      return how == null ? Result.problem("unknown-lease", 404, "no lease with this id exists", Map.of()) : gone(how);
    }
    if (lease.token == 0) {
      return Result.problem("not-granted", 409, "the lease is still in the queue: repeat its PUT instead", Map.of());
    }
    lease.ttlMs = ttlMs instanceof Long ms ? ms : lease.ttlMs;
    lease.untilMs = Math.max(lease.untilMs, nowMs + lease.ttlMs);
    return new Result(200, grantOf(lease));
  }

  Result release(String id) {
    Entry lease = leases.get(id);
    String how = ended.getOrDefault(id, "released");
    if (lease != null) {
      end(lease, "released", nowMs);
    } else if (!how.equals("released") && !how.equals("timed-out")) {
      return gone(how);
    } else {
      ended.put(id, how);
    }
    return new Result(204, null);
  }

  /** Ends the leases that hold a key. Returns their tokens. */
  List<Long> endAll(String key, String how) {
    List<Entry> holders = holders(key);
    holders.forEach(lease -> end(lease, how, nowMs));
    return holders.stream().map(lease -> lease.token).toList();
  }

  /** The public view of a key. */
  Map<String, Object> view(String key) {
    Map<String, Object> view = new LinkedHashMap<>();
    view.put("key", key);
    view.put("fence", fence(key));
    view.put("revision", number);
    view.put("holders", holders(key).stream().map(lease -> told(lease, key)).toList());
    view.put(
        "waiters",
        all(key).stream().filter(lease -> lease.token == 0).map(lease -> Map.of("holder", "" + lease.holder)).toList());
    return view;
  }

  private static List<Claim> claims(Object keys) {
    List<Claim> claims = new ArrayList<>();
    for (Object one : keys instanceof List<?> list ? list : List.of()) {
      if (one instanceof Map<?, ?> claim) {
        Long limit = claim.get("limit") instanceof Long most ? most : null;
        claims.add(new Claim(String.valueOf(claim.get("key")), "shared".equals(claim.get("mode")), limit));
      } else {
        claims.add(Claim.exclusive(String.valueOf(one)));
      }
    }
    return claims;
  }

  /** Those on a key, in the order of their coming. */
  private List<Entry> all(String key) {
    return leases.values().stream().filter(lease -> lease.claim(key) != null).toList();
  }

  private List<Entry> holders(String key) {
    return all(key).stream()
        .filter(lease -> lease.token > 0)
        .sorted(Comparator.comparing(lease -> lease.token))
        .toList();
  }

  /** Whether it goes together with all that came before it. */
  private boolean fits(Entry lease) {
    for (Claim claim : lease.claims) {
      List<Entry> others = all(claim.key());
      int place = others.indexOf(lease);
      List<Entry> before = place < 0 ? others : others.subList(0, place);
      for (Entry other : before) {
        Claim theirs = other.claim(claim.key());
        boolean isFull = isFull(claim, before.size()) || isFull(theirs, before.size());
        if (!claim.isShared() || !theirs.isShared() || isFull) {
          return false;
        }
      }
    }
    return true;
  }

  private static boolean isFull(Claim claim, int others) {
    return claim.limit() != null && others >= claim.limit();
  }

  private void grant(Entry lease, long at) {
    lease.token = ++number;
    lease.untilMs = at + lease.ttlMs;
  }

  private void end(Entry lease, String how, long at) {
    number++;
    leases.remove(lease.id);
    ended.put(lease.id, how);
    leases.values().stream().filter(waiter -> waiter.token == 0 && fits(waiter)).forEach(waiter -> grant(waiter, at));
  }

  private long fence(String key) {
    return holders(key).stream().map(lease -> lease.token).findFirst().orElse(number + 1);
  }

  private Map<String, Object> told(Entry lease, String key) {
    Map<String, Object> told = new LinkedHashMap<>();
    told.put("key", key);
    told.put("token", lease.token);
    told.put("holder", lease.holder);
    told.put("mode", lease.claim(key).isShared() ? "shared" : "exclusive");
    told.put("limit", lease.claim(key).limit());
    told.put("expires_in_ms", Math.max(0, lease.untilMs - nowMs));
    return told;
  }

  private Map<String, Object> grantOf(Entry lease) {
    Map<String, Object> grant = new LinkedHashMap<>();
    grant.put("lease_id", lease.id);
    grant.put("state", "granted");
    grant.put("token", lease.token);
    grant.put("ttl_ms", lease.ttlMs);
    grant.put("expires_in_ms", Math.max(0, lease.untilMs - nowMs));
    List<Object> keys = new ArrayList<>();
    for (Claim claim : lease.claims) {
      keys.add(Map.of("key", claim.key(), "fence", fence(claim.key())));
    }
    grant.put("keys", keys);
    return grant;
  }

  private static Result waiting(Entry lease) {
    return new Result(202, Map.of("lease_id", lease.id, "state", "waiting", "ahead", 0));
  }

  private Result held(Entry lease) {
    List<Object> holders = new ArrayList<>();
    long waiters = 0;
    for (Claim claim : lease.claims) {
      holders(claim.key()).forEach(holder -> holders.add(told(holder, claim.key())));
      waiters = Math.max(waiters, all(claim.key()).stream().filter(one -> one.token == 0).count());
    }
    Map<String, Object> more = Map.of("lease_id", lease.id, "holders", holders, "waiters", waiters);
    return Result.problem("held", 409, "another lease holds a key: set wait_ms to wait for it", more);
  }

  private static Result gone(String how) {
    return how.equals("timed-out")
        ? Result.problem("wait-timeout", 409, "the wait ended before the keys were free: use a new lease_id", Map.of())
        : Result.problem("lease-gone", 410, "the lease has ended (" + how + "): use a new lease_id", Map.of("reason", how));
  }
}
