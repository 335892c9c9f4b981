package dev.ringfence;

import java.util.Locale;

/** How a lease stands, by its holder's own clock. */
public enum LeaseState {
  /** Confirmed lately: it certainly lives. */
  HELD,
  /** It certainly lives for what remains, but two thirds of its time have passed without a renewal: get ready to stop. */
  UNSURE,
  /** It has ended, or may have. For good. */
  LOST,
  /** Its holder released it. */
  RELEASED;

  /** As the clients of other languages have it: {@code held}. */
  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }
}
