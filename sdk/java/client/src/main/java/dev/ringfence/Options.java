package dev.ringfence;

import java.util.LinkedHashMap;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** What a lease is asked for with. It was checked, and is not changed once a {@link LockRequest} has it. */
final class Options implements Cloneable {
  private static final long DEFAULT_TTL_MS = 15_000;

  final Claim[] claims;
  long ttlMs = DEFAULT_TTL_MS;
  /** How long it waits in the queue; {@code null} for as long as it takes. */
  Long waitMs;

  Long maxHoldMs;
  long holdAtLeastMs;
  boolean renews = true;
  boolean interrupts;
  String holder;
  Map<String, String> metadata = Map.of();
  Consumer<Loss> onLost;
  /** What all its acquires have in common, as the inside of a JSON object. */
  private String text;

  Options(Claim... claims) {
    Checks.claims(claims);
    this.claims = claims.clone();
  }

  Options changed(Consumer<Options> change) {
    Options copy;
    try {
      copy = (Options) clone();
    } catch (CloneNotSupportedException error) {
      throw new AssertionError("this class is Cloneable", error);
    }
    change.accept(copy);
    copy.text = null;
    return copy;
  }

  List<String> keys() {
    List<String> keys = new ArrayList<>();
    for (Claim claim : claims) {
      keys.add(claim.key());
    }
    return keys;
  }

  boolean isTry() {
    return waitMs != null && waitMs == 0;
  }

  /** Checks what depends on several of them. */
  void check() {
    if (maxHoldMs != null && holdAtLeastMs > maxHoldMs) {
      throw new InvalidException("holdAtLeast", "must not be more than maxHold");
    }
  }

  /** The fields of an acquire that waits this long. Only with a kept place may a node that is cut off end the wait. */
  String acquire(long waits) {
    return text() + ",\"keep_place\":" + (waits > 0);
  }

  private String text() {
    if (text == null) {
      List<Object> keys = new ArrayList<>();
      for (Claim claim : claims) {
        Map<String, Object> key = new LinkedHashMap<>();
        key.put("key", claim.key());
        key.put("mode", claim.isShared() ? "shared" : "exclusive");
        if (claim.limit() != null) {
          key.put("limit", claim.limit());
        }
        keys.add(key);
      }
      Map<String, Object> body = new LinkedHashMap<>();
      body.put("keys", keys);
      body.put("ttl_ms", ttlMs);
      if (holder != null) {
        body.put("holder", holder);
      }
      if (!metadata.isEmpty()) {
        body.put("metadata", metadata);
      }
      String json = Json.write(body);
      text = json.substring(1, json.length() - 1);
    }
    return text;
  }
}
