package dev.ringfence;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON, as far as this client needs it: objects are maps, arrays lists, integers {@code Long} (all of their digits count), and other
 * numbers {@code Double}.
 */
final class Json {
  private static final int MAX_DEPTH = 64;

  /** What was read is no JSON. */
  static final class Malformed extends Exception {
    private static final long serialVersionUID = 1;

    Malformed(String message) {
      super(message);
    }
  }

  private final String text;
  private int at;

  private Json(String text) {
    this.text = text;
  }

  static Object read(String text) throws Malformed {
    Json json = new Json(text);
    Object value = json.value(0);
    if (json.peek() != 0) {
      throw json.wrong("something follows");
    }
    return value;
  }

  /** Writes maps, collections, texts, numbers, booleans and {@code null}. */
  static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(out, value);
    return out.toString();
  }

  private static void write(StringBuilder out, Object value) {
    if (value instanceof Map<?, ?> map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : map.entrySet()) {
        out.append(separator);
        write(out, String.valueOf(entry.getKey()));
        out.append(':');
        write(out, entry.getValue());
        separator = ",";
      }
      out.append(map.isEmpty() ? "{}" : "}");
    } else if (value instanceof Iterable<?> many) {
      String separator = "";
      out.append('[');
      for (Object one : many) {
        out.append(separator);
        write(out, one);
        separator = ",";
      }
      out.append(']');
    } else if (value instanceof CharSequence characters) {
      write(out, characters);
    } else {
      out.append(value);
    }
  }

  private static void write(StringBuilder out, CharSequence text) {
    out.append('"');
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ' || Character.isSurrogate(c)) {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  private Malformed wrong(String what) {
    return new Malformed(what + " at character " + at);
  }

  /** The next character that is no space; 0 at the end. */
  private char peek() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
    return at < text.length() ? text.charAt(at) : 0;
  }

  private void expect(char wanted) throws Malformed {
    if (peek() != wanted) {
      throw wrong("no " + wanted);
    }
    at++;
  }

  private boolean takes(char wanted) {
    boolean isThere = peek() == wanted;
    at += isThere ? 1 : 0;
    return isThere;
  }

  private Object value(int depth) throws Malformed {
    if (depth > MAX_DEPTH) {
      throw wrong("it is nested too deeply");
    }
    return switch (peek()) {
      case '{' -> object(depth);
      case '[' -> array(depth);
      case '"' -> string();
      case 't' -> word("true", true);
      case 'f' -> word("false", false);
      case 'n' -> word("null", null);
      default -> number();
    };
  }

  private Object word(String word, Object value) throws Malformed {
    if (!text.startsWith(word, at)) {
      throw wrong("no value");
    }
    at += word.length();
    return value;
  }

  private Map<String, Object> object(int depth) throws Malformed {
    Map<String, Object> map = new LinkedHashMap<>();
    expect('{');
    if (takes('}')) {
      return map;
    }
    do {
      peek();
      String name = string();
      expect(':');
      map.put(name, value(depth + 1));
    } while (takes(','));
    expect('}');
    return map;
  }

  private List<Object> array(int depth) throws Malformed {
    List<Object> list = new ArrayList<>();
    expect('[');
    if (takes(']')) {
      return list;
    }
    do {
      list.add(value(depth + 1));
    } while (takes(','));
    expect(']');
    return list;
  }

  private String string() throws Malformed {
    expect('"');
    StringBuilder out = new StringBuilder();
    while (at < text.length()) {
      char c = text.charAt(at++);
      if (c == '"') {
        return out.toString();
      }
      if (c < ' ') {
        throw wrong("a control character");
      }
      out.append(c == '\\' ? escaped() : c);
    }
    throw wrong("no end of a text");
  }

  private char escaped() throws Malformed {
    char c = at < text.length() ? text.charAt(at++) : 0;
    int plain = "\"\\/bfnrt".indexOf(c);
    if (plain >= 0) {
      return "\"\\/\b\f\n\r\t".charAt(plain);
    }
    if (c == 'u' && at + 4 <= text.length() && text.substring(at, at + 4).matches("[0-9a-fA-F]{4}")) {
      at += 4;
      return (char) Integer.parseInt(text.substring(at - 4, at), 16);
    }
    throw wrong("no such escape");
  }

  private Object number() throws Malformed {
    int start = at;
    while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
    String digits = text.substring(start, at);
    if (!digits.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][-+]?[0-9]+)?")) {
      throw wrong("no value");
    }
    if (digits.matches("-?[0-9]{1,18}")) {
      return Long.valueOf(digits);
    }
    return Double.valueOf(digits);
  }
}
