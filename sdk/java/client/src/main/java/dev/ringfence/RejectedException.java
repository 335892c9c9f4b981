package dev.ringfence;

import java.util.Map;

/** The cluster refused the request, and did nothing. */
public class RejectedException extends RingfenceException {
  private static final long serialVersionUID = 1;
  private final String kind;

  RejectedException(Map<String, Object> problem) {
    super(problem.get("detail") instanceof String detail ? Text.told(detail) : "the cluster refused the request");
    String type = String.valueOf(problem.get("type"));
    this.kind = type.substring(type.lastIndexOf(':') + 1);
  }

  /**
   * The kind of problem.
   *
   * @return the end of the problem's {@code type}, as in {@code overloaded}
   */
  public String kind() {
    return kind;
  }
}
