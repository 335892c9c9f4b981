package dev.ringfence;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A live lease on a key.
 *
 * @param key the key
 * @param token the token of the lease
 * @param holder the public label that its holder gave it; {@code null} if it has none
 * @param shared whether the key is shared
 * @param limit how many may share the key; {@code null} for no limit
 * @param expiresIn when the lease ends unless it is renewed
 */
public record Blocker(String key, long token, String holder, boolean shared, Long limit, Duration expiresIn) {
  /** Reads the {@code holders} of a problem or of a key, which has no key of its own in each of them. */
  static List<Blocker> read(Object holders, String key) {
    List<Blocker> found = new ArrayList<>();
    for (Object one : holders instanceof List<?> list ? list : List.of()) {
      if (!(one instanceof Map<?, ?> body) || !(body.get("token") instanceof Long token)) {
        continue;
      }
      String name = body.get("key") instanceof String own ? own : key;
      String holder = body.get("holder") instanceof String text ? text : null;
      Long limit = body.get("limit") instanceof Long number ? number : null;
      long ms = body.get("expires_in_ms") instanceof Long number ? number : 0;
      if (name != null) {
        found.add(
            new Blocker(name, token, holder, "shared".equals(body.get("mode")), limit, Duration.ofMillis(ms)));
      }
    }
    return found;
  }

  String told() {
    return Text.quoted(key) + " is held" + by() + " with token " + token;
  }

  /** Another client chose the name: it must not reach terminals and logs unescaped. */
  String by() {
    return holder == null ? "" : " by " + Text.quoted(holder);
  }
}
