package dev.ringfence;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A whole response, and when its request was sent.
 *
 * @param sent when the request was sent
 * @param status the status
 * @param headers by their names in lower case
 * @param body the body
 * @param parsed the body, if it was read already: that of one operation of a batch
 */
record Response(Moment sent, int status, Map<String, String> headers, String body, Object parsed) {
  private static final String PROBLEM = "urn:ringfence:problem:";

  /** Reads the body. */
  Object json() throws Json.Malformed {
    return parsed != null ? parsed : Json.read(body);
  }

  /** Reads the results of as many operations, each as the response that it would have got alone. */
  List<Response> results(int count) throws Json.Malformed {
    Object found = json() instanceof Map<?, ?> map ? map.get("results") : null;
    if (!(found instanceof List<?> list) || list.size() != count) {
      throw new Json.Malformed("not as many results as operations");
    }
    List<Response> results = new ArrayList<>(count);
    for (Object one : list) {
      if (!(one instanceof Map<?, ?> result) || !(result.get("status") instanceof Long number)) {
        throw new Json.Malformed("a result without a status");
      }
      results.add(new Response(sent, number.intValue(), headers, "", result.get("body")));
    }
    return results;
  }

  /** The leader's URL, if the node knows it. */
  String leader() {
    return headers.get("ringfence-leader");
  }

  /** The id of the node's cluster, unless the node is old or belongs to none. */
  String cluster() {
    return headers.get("ringfence-cluster");
  }

  boolean keepsAlive() {
    return !"close".equalsIgnoreCase(headers.get("connection"));
  }

  /** The problem it reports, if a node wrote it rather than something in between; otherwise {@code null}. */
  Map<String, Object> problem() {
    try {
      if (json() instanceof Map<?, ?> map
          && map.get("status") instanceof Long told
          && told == status
          && map.get("type") instanceof String type
          && type.startsWith(PROBLEM)) {
        @SuppressWarnings("unchecked") // The keys of JSON are texts.
        Map<String, Object> problem = (Map<String, Object>) map;
        return problem;
      }
    } catch (Json.Malformed error) {
      // Something in between wrote it.
    }
    return null;
  }

  /** How long to wait before a repeat, in nanoseconds, if it says so: an hour at most. Otherwise -1. */
  long retryAfter() {
    String text = headers.getOrDefault("retry-after", "");
    return text.matches("[0-9]{1,9}") ? Math.min(Long.parseLong(text), 3_600) * 1_000 * Checks.MS : -1;
  }
}
