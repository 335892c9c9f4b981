package dev.ringfence;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A granted lease, as a response describes it. */
record Grant(String leaseId, long token, long ttlMs, long expiresInMs, Map<String, Long> fences) {
  private static final long MAX_TOKEN = (1L << 53) - 1;

  /** Reads a grant of this lease. {@code expectedKeys}: those that it was asked for with; {@code null} if that is not known. */
  static Grant read(Object body, String expectedId, Collection<String> expectedKeys) throws Json.Malformed {
    if (!(body instanceof Map<?, ?> map) || !"granted".equals(map.get("state"))) {
      throw new Json.Malformed("no grant");
    }
    if (!expectedId.equals(map.get("lease_id"))) {
      throw new Json.Malformed("the grant of another lease");
    }
    if (!(map.get("keys") instanceof List<?> keys)) {
      throw new Json.Malformed("no keys");
    }
    Map<String, Long> fences = new LinkedHashMap<>();
    for (Object one : keys) {
      if (!(one instanceof Map<?, ?> key) || !(key.get("key") instanceof String name)) {
        throw new Json.Malformed("no key");
      }
      fences.put(name, integer(key, "fence", 1, MAX_TOKEN));
    }
    if (fences.isEmpty() || expectedKeys != null && !fences.keySet().equals(Set.copyOf(expectedKeys))) {
      throw new Json.Malformed("a grant of other keys");
    }
    return new Grant(
        expectedId,
        integer(map, "token", 1, MAX_TOKEN),
        integer(map, "ttl_ms", 1, Checks.DAY_MS),
        integer(map, "expires_in_ms", 0, Checks.DAY_MS * 2),
        fences);
  }

  private static long integer(Map<?, ?> body, String name, long least, long most) throws Json.Malformed {
    if (!(body.get(name) instanceof Long value) || value < least || value > most) {
      throw new Json.Malformed(name + " is no such number");
    }
    return value;
  }
}
