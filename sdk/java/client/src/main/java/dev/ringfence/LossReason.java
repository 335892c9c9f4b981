package dev.ringfence;

import java.util.Locale;

/** Why a lease is lost. */
public enum LossReason {
  /** It was released. */
  RELEASED("it was released"),
  /** It was not renewed in time, the cluster says. */
  EXPIRED("it has expired"),
  /** An operator revoked it. */
  REVOKED("an operator revoked it"),
  /** The connection of its acquire was lost before the response. */
  ABANDONED("its connection was lost before the response"),
  /** The cluster no longer knows it. */
  FORGOTTEN("the cluster no longer knows it"),
  /** The time in which it certainly lived passed without a renewal. */
  UNCONFIRMED("no renewal was confirmed in time"),
  /** It reached its maximum hold time. */
  MAX_HOLD("it reached its maximum hold time");

  final String told;

  LossReason(String told) {
    this.told = told;
  }

  /** What the cluster says of an ended lease. */
  static LossReason of(Object text) {
    for (LossReason reason : new LossReason[] {RELEASED, EXPIRED, REVOKED, ABANDONED}) {
      if (reason.toString().equals(text)) {
        return reason;
      }
    }
    return FORGOTTEN;
  }

  /** As the API and the clients of other languages have it: {@code max-hold}. */
  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT).replace('_', '-');
  }
}
