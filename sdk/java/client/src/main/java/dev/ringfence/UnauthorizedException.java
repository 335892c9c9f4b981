package dev.ringfence;

import java.util.Map;

/** The caller has no valid credential (401), or lacks a right (403). */
public final class UnauthorizedException extends RejectedException {
  private static final long serialVersionUID = 1;

  UnauthorizedException(Map<String, Object> problem) {
    super(problem);
  }
}
