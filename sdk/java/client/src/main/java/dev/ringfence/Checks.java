package dev.ringfence;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.UUID;

/** Checks what a caller asks for, before anything is sent. */
final class Checks {
  static final long MS = 1_000_000;
  static final long DAY_MS = 86_400_000;
  /** In bytes of UTF-8. */
  static final int LONGEST_KEY = 512;
  private static final int MAX_KEYS = 64;
  /** Some thirty years. */
  private static final Duration LONGEST = Duration.ofSeconds(1_000_000_000);

  private Checks() {}

  /** In milliseconds. A positive time stays one. */
  static long ms(String field, Duration time) {
    if (time == null || time.isNegative() || time.compareTo(LONGEST) > 0) {
      throw new InvalidException(field, "is from 0 to 1e9 seconds");
    }
    return time.plusNanos(MS - 1).toMillis();
  }

  /** The bound of a call, in nanoseconds. Who says {@code Long.MAX_VALUE} means no bound. */
  static long nanos(String field, Duration time) {
    return ms(field, time == null || time.compareTo(LONGEST) < 0 ? time : LONGEST) * MS;
  }

  static long ttlMs(Duration ttl) {
    long ms = ms("ttl", ttl);
    if (ms < 100 || ms > DAY_MS) {
      throw new InvalidException("ttl", "a time-to-live is from 0.1 s to 24 h");
    }
    return ms;
  }

  static long holdAtLeastMs(Duration time) {
    long ms = ms("holdAtLeast", time);
    if (ms > DAY_MS) {
      throw new InvalidException("holdAtLeast", "is at most 24 h");
    }
    return ms;
  }

  /** A lease id in lower case with hyphens. */
  static String leaseId(String text) {
    try {
      UUID parsed = UUID.fromString(text == null ? "" : text);
      // The JDK takes shorter ones.
      if (parsed.toString().equalsIgnoreCase(text) && !parsed.equals(new UUID(0, 0))) {
        return parsed.toString();
      }
    } catch (IllegalArgumentException error) {
      // Below.
    }
    throw new InvalidException("lease_id", "is not a UUID");
  }

  static void claims(Claim[] claims) {
    if (claims.length < 1 || claims.length > MAX_KEYS) {
      throw new InvalidException("keys", "a lease has 1 to " + MAX_KEYS + " keys, not " + claims.length);
    }
    for (int i = 0; i < claims.length; i++) {
      String field = "keys[" + i + "]";
      Claim claim = claims[i];
      if (claim == null) {
        throw new InvalidException(field, "is null");
      }
      key(claim.key(), field);
      Long limit = claim.limit();
      if (limit != null && (limit < 1 || limit >= 1L << 32)) {
        throw new InvalidException(field + ".limit", "a limit is an integer from 1 to 4294967295");
      }
      if (limit != null && !claim.isShared()) {
        throw new InvalidException(field + ".limit", "only a shared key has a limit");
      }
      for (int before = 0; before < i; before++) {
        if (claims[before].key().equals(claim.key())) {
          throw new InvalidException(field, Text.quoted(claim.key()) + " is there twice");
        }
      }
    }
  }

  static String key(String key, String field) {
    if (key == null || key.isEmpty()) {
      throw new InvalidException(field, "a key must not be empty");
    }
    if (bytes(field, key) > LONGEST_KEY) {
      throw new InvalidException(field, "a key has at most 512 bytes of UTF-8");
    }
    if (key.chars().anyMatch(Character::isISOControl)) {
      throw new InvalidException(field, Text.quoted(key) + ": a key must not contain control characters");
    }
    for (String segment : key.split("/", -1)) {
      if (segment.isEmpty() || segment.equals(".") || segment.equals("..")) {
        throw new InvalidException(
            field, Text.quoted(key) + ": a key must not contain an empty, `.` or `..` segment between its slashes");
      }
    }
    return key;
  }

  static String holder(String holder) {
    if (holder == null || bytes("holder", holder) > 256) {
      throw new InvalidException("holder", "a holder is a text of at most 256 bytes");
    }
    return holder;
  }

  static Map<String, String> metadata(Map<String, String> metadata) {
    long size = 0;
    for (Map.Entry<String, String> entry : metadata.entrySet()) {
      if (entry.getKey() == null || entry.getValue() == null) {
        throw new InvalidException("metadata", "names and values are texts");
      }
      size += bytes("metadata", entry.getKey()) + bytes("metadata", entry.getValue());
    }
    if (size > 4_096) {
      throw new InvalidException("metadata", "metadata has at most 4,096 bytes in total");
    }
    return Map.copyOf(metadata);
  }

  static void credential(String credential) {
    if (credential.isEmpty() || !credential.chars().allMatch(c -> c > ' ' && c < 127)) {
      throw new InvalidException("credential", "must be visible ASCII characters without spaces");
    }
  }

  static int bytes(String field, String text) {
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
      throw new InvalidException(field, "must be expressible in UTF-8");
    }
    return text.getBytes(StandardCharsets.UTF_8).length;
  }
}
