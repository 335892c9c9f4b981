package dev.ringfence;

/**
 * What a leader does.
 *
 * @param <T> its result
 * @param <E> what it may throw
 */
@FunctionalInterface
public interface Work<T, E extends Exception> {
  /**
   * Works as the leader.
   *
   * @param lease the lease under which it leads: it finds out by {@link Lease#check} that it leads no longer
   * @return the result of {@code lead}
   * @throws E if it fails, which ends the race if it still leads
   */
  T run(Lease lease) throws E;
}
