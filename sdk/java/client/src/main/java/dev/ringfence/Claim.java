package dev.ringfence;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;

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

  /**
   * A key of names that another program chose, each of which becomes one segment: what a key forbids is percent-encoded, and if the key
   * is too long, the last names are hashed.
   *
   * @param prefix what stands before them, as it is
   * @param names the names, none of which is empty
   * @return the key
   */
  public static String keyOf(String prefix, String... names) {
    String[] segments = Arrays.stream(names).map(Claim::escaped).toArray(String[]::new);
    String key = prefix + String.join("/", segments);
    // Those at the front are what tools group keys by.
    for (int i = names.length - 1; Checks.bytes("name", key) > Checks.LONGEST_KEY && i >= 0; i--) {
      segments[i] = hashed(names[i]);
      key = prefix + String.join("/", segments);
    }
    return key;
  }

  private static String escaped(String name) {
    if (name == null) {
      throw new InvalidException("name", "is null");
    }
    boolean areDots = name.equals(".") || name.equals("..");
    StringBuilder segment = new StringBuilder();
    name.codePoints()
        .forEach(
            one -> {
              String text = Character.toString(one);
              if (areDots || one == '/' || one == '%' || Character.isISOControl(one)) {
                for (byte octet : text.getBytes(StandardCharsets.UTF_8)) {
                  segment.append(String.format("%%%02X", octet));
                }
              } else {
                segment.append(text);
              }
            });
    return segment.toString();
  }

  private static String hashed(String name) {
    try {
      byte[] hash = MessageDigest.getInstance("SHA-256").digest(name.getBytes(StandardCharsets.UTF_8));
      // Nothing that is encoded begins so.
      return "%sha256:" + HexFormat.of().formatHex(hash);
    } catch (NoSuchAlgorithmException error) {
      throw new AssertionError("every JDK has SHA-256", error);
    }
  }
}
