package dev.ringfence;

import java.nio.charset.StandardCharsets;

/** Texts for people, and for paths. */
final class Text {
  private static final int MAX_TOLD = 1_024;

  private Text() {}

  /** In quotes, with all that could mislead a terminal escaped. */
  static String quoted(String text) {
    StringBuilder out = new StringBuilder("'");
    text.codePoints()
        .forEach(
            point -> {
              boolean isPlain = point >= ' ' && point < 127 && point != '\'' && point != '\\';
              out.append(isPlain ? Character.toString(point) : String.format("\\u{%x}", point));
            });
    return out.append('\'').toString();
  }

  /** What a node has written, as part of a message: not too long, and with nothing that could mislead a terminal. */
  static String told(String text) {
    StringBuilder out = new StringBuilder();
    text.codePoints()
        .limit(MAX_TOLD)
        .forEach(
            point -> {
              boolean isPlain = !Character.isISOControl(point) && Character.getType(point) != Character.FORMAT;
              out.appendCodePoint(isPlain ? point : '?');
            });
    return out.toString();
  }

  /** Percent-encodes a text as one segment of a path. */
  static String segment(String text) {
    StringBuilder out = new StringBuilder();
    for (byte one : text.getBytes(StandardCharsets.UTF_8)) {
      boolean isPlain =
          one >= 'a' && one <= 'z' || one >= 'A' && one <= 'Z' || one >= '0' && one <= '9' || "-._~".indexOf(one) >= 0;
      out.append(isPlain ? String.valueOf((char) one) : String.format("%%%02X", one));
    }
    return out.toString();
  }

  /** A time for people. */
  static String seconds(long nanos) {
    return nanos % 1_000_000_000 == 0 ? nanos / 1_000_000_000 + " s" : nanos / 1_000_000 + " ms";
  }
}
