package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

final class JsonTest {
  @ParameterizedTest
  @ValueSource(
      strings = {
        "{}", "[]", "null", "true", "{\"a\":[1,-2,{\"b\":false}],\"c\":\"d\"}", "9007199254740991", "\"\\u0007\\\"\\\\é\"", "1.5"
      })
  void whatIsReadIsWrittenAgain(String text) throws Json.Malformed {
    assertEquals(text, Json.write(Json.read(text)));
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "", "{", "[1,]", "{\"a\"}", "{\"a\":1,}", "01", "1.", "--1", "nul", "\"a", "\"\n\"", "\"\\x\"", "\"\\u12\"", "1 2", "<html>"
      })
  void whatIsNoJsonIsRefused(String text) {
    assertThrows(Json.Malformed.class, () -> Json.read(text));
  }

  @Test
  void depthIsBounded() {
    assertThrows(Json.Malformed.class, () -> Json.read("[".repeat(100_000)));
  }

  @Test
  void spacesAndEscapesAreRead() throws Json.Malformed {
    assertEquals(Map.of("a\n", "\ud83d\ude00/"), Json.read(" { \"a\\n\" :\t\"\\ud83d\\ude00\\/\" } \r\n"));
  }
}
