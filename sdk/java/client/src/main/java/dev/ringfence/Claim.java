package dev.ringfence;

/**
 * One key that a lease wants: exclusive, shared, or shared by at most {@code limit} holders.
 *
 * @param key the key
 * @param isShared whether others may hold it, too
 * @param limit how many may share it; {@code null} for no limit
 */
public record Claim(String key, boolean isShared, Long limit) {
  /**
   * A key for one holder.
   *
   * @param key the key
   * @return the claim
   */
  public static Claim exclusive(String key) {
    return new Claim(key, false, null);
  }

  /**
   * A key that others may share.
   *
   * @param key the key
   * @return the claim
   */
  public static Claim shared(String key) {
    return new Claim(key, true, null);
  }

  /**
   * A key that at most so many may share.
   *
   * @param key the key
   * @param limit how many
   * @return the claim
   */
  public static Claim limited(String key, long limit) {
    return new Claim(key, true, limit);
  }
}
