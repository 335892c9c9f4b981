package dev.ringfence;

import java.util.Map;

/**
 * The outcome of one attempt. Nothing else interprets responses.
 *
 * <pre>
 * response                                       outcome     what follows
 * 2xx of a node that reads as expected           Done        the end
 * 4xx with a `type` of Ringfence                 Refused     the end
 * 503 `unavailable`; 429 `rate-limited`;         NotDone     repeat elsewhere
 * nothing was sent
 * 504; 3xx; a 2xx, 4xx or 5xx of a proxy; an     Ambiguous   repeat elsewhere
 * unreadable 2xx; no complete response
 * </pre>
 *
 * <p>A node names its cluster in each 2xx. A proxy may answer a DELETE with a 204 of its own.
 */
sealed interface Outcome<T> {
  /** Whether nothing more has to be asked. */
  default boolean isDefinite() {
    return this instanceof Done || this instanceof Refused;
  }

  /** What went wrong. */
  String why();

  /** Reads a 2xx. */
  @FunctionalInterface
  interface Reader<T> {
    T read(Response response) throws Json.Malformed;
  }

  /** It was done. */
  record Done<T>(T value) implements Outcome<T> {
    @Override
    public String why() {
      return "";
    }
  }

  /** It was not done, for the reason of this problem. */
  record Refused<T>(Map<String, Object> problem, long retryAfter) implements Outcome<T> {
    String kind() {
      String type = String.valueOf(problem.get("type"));
      return type.substring(type.lastIndexOf(':') + 1);
    }

    /**
     * Whether the caller may not do this: which says nothing of attempts before, as the right may have been lost in between.
     */
    boolean isDenial() {
      return kind().equals("unauthenticated") || kind().equals("forbidden");
    }

    /** Why the lease is lost, if this says that it is. */
    LossReason loss() {
      return switch (kind()) {
        case "unknown-lease" -> LossReason.FORGOTTEN;
        case "lease-gone" -> LossReason.of(problem.get("reason"));
        default -> null;
      };
    }

    @Override
    public String why() {
      return Text.told(problem.get("detail") instanceof String detail ? detail : kind());
    }
  }

  /** Certainly not done, for now. {@code retryAfter} is -1 if the node did not say when to ask again. */
  record NotDone<T>(String why, long retryAfter) implements Outcome<T> {}

  /** It may have been done. */
  record Ambiguous<T>(String why) implements Outcome<T> {}

  /** The outcome that a response tells. */
  static <T> Outcome<T> of(Response response, Reader<T> reader) {
    int status = response.status();
    if (status >= 200 && status < 300 && response.cluster() != null) {
      try {
        return new Done<>(reader.read(response));
      } catch (Json.Malformed error) {
        return new Ambiguous<>("unreadable " + status + ": " + error.getMessage());
      }
    }
    Map<String, Object> problem = response.problem();
    if (problem == null) {
      return new Ambiguous<>("a " + status + " that no node wrote");
    }
    Refused<T> refused = new Refused<>(problem, response.retryAfter());
    return switch (refused.kind()) {
      case "rate-limited" -> new NotDone<>(refused.why(), response.retryAfter());
      // It asks for a second, and most elections take less.
      case "unavailable" -> new NotDone<>(refused.why(), -1);
      default -> status >= 400 && status < 500 ? refused : new Ambiguous<>(refused.why());
    };
  }
}
