package dev.ringfence;

/**
 * How long a lease certainly lives, as its holder knows it. What is learned makes a new one.
 *
 * <p>The cluster guarantees {@code expires_in_ms} from when the request was <em>sent</em>, because it cannot have received the
 * request earlier. The holder counts on its own clock, and subtracts an allowance:
 *
 * <pre>
 *     sent        renewed            in doubt           until    sent + expires_in
 *      |------------|------------------|------------------|---------|
 *      :    1/3     :       1/3        :       1/3        : allowance
 *           held           held              unsure         lost, for good
 * </pre>
 *
 * <p>Each confirmation gives a bound of its own. The latest bound counts, in whatever order responses arrive. A confirmation that
 * arrives after {@code until} does not revive the lease: its loss may have been reported already.
 *
 * @param ttl in nanoseconds
 * @param until until when it certainly lives
 * @param holdUntil when its holder gives it up; {@code null} if it does not
 * @param renews whether it is renewed
 */
record Lifetime(long ttl, Moment until, Moment holdUntil, boolean renews) {
  static Lifetime of(Confirmation first, Moment holdUntil, boolean renews) {
    return new Lifetime(first.grant().ttlMs() * Checks.MS, first.until(), holdUntil, renews);
  }

  /** A longer one, with the ttl that another client may have changed. */
  Lifetime confirmed(Confirmation confirmation) {
    long newTtl = confirmation.grant().ttlMs() * Checks.MS;
    return new Lifetime(newTtl, until.max(confirmation.until()), holdUntil, renews);
  }

  /** Why it is over; {@code null} if it is not. Whoever reports that keeps it: a loss that was reported is final. */
  LossReason loss(Moment now) {
    if (!now.hasReached(end())) {
      return null;
    }
    return isRenewedEnough() ? LossReason.MAX_HOLD : LossReason.UNCONFIRMED;
  }

  /** How it stands, if nothing has ended it. */
  LeaseState state(Moment now) {
    boolean isDoubtful = needsRenewals() && now.hasReached(until.plus(-ttl / 3));
    return isDoubtful ? LeaseState.UNSURE : LeaseState.HELD;
  }

  /** How much longer it certainly lives, in nanoseconds. */
  long remaining(Moment now) {
    return loss(now) != null ? 0 : end().since(now);
  }

  /** How long until it is due to be renewed, a third of its time after the last confirmed request; -1 if it is not. */
  long dueIn(Moment now) {
    return needsRenewals() ? Math.max(0, until.since(now) - ttl / 3 * 2) : -1;
  }

  /** When it ends by its holder's clock, or its holder gives it up. */
  Moment end() {
    return holdUntil == null ? until : holdUntil.min(until);
  }

  private boolean needsRenewals() {
    return renews && !isRenewedEnough();
  }

  private boolean isRenewedEnough() {
    return holdUntil != null && until.hasReached(holdUntil);
  }
}
