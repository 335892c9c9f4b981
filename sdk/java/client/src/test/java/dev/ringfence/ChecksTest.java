package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** What cannot succeed is refused before anything is sent, and the error names the field. */
final class ChecksTest {
  private static final Ringfence CLIENT = Ringfence.connect("http://127.0.0.1:1");

  static Stream<Arguments> wrong() {
    LockRequest lock = CLIENT.lock("a");
    return Stream.of(
        one("keys", () -> CLIENT.lock(new String[0])),
        one("keys[0]", () -> CLIENT.lock("")),
        one("keys[1]", () -> CLIENT.lock("a", "a")),
        one("keys[0]", () -> CLIENT.lock("a//b")),
        one("keys[0]", () -> CLIENT.lock("a/../b")),
        one("keys[0]", () -> CLIENT.lock("\ud800")),
        one("keys[0]", () -> CLIENT.lock((String) null)),
        one("keys[0]", () -> CLIENT.lock("k".repeat(513))),
        one("name", () -> Claim.keyOf("cron/", "\ud800")),
        one("name", () -> Claim.keyOf("cron/", "a", null)),
        one("keys[0].limit", () -> CLIENT.lock(Claim.limited("a", 0))),
        one("keys[0].limit", () -> CLIENT.lock(new Claim("a", false, 3L))),
        one("ttl", () -> lock.ttl(Duration.ofMillis(99))),
        one("ttl", () -> lock.ttl(null)),
        one("wait", () -> lock.waitAtMost(Duration.ofMillis(-1))),
        one("wait", () -> lock.waitAtMost(Duration.ofSeconds(Long.MAX_VALUE))),
        one("maxHold", () -> lock.maxHold(Duration.ZERO)),
        one("holdAtLeast", () -> lock.holdAtLeast(Duration.ofDays(2))),
        one("holdAtLeast", () -> lock.holdAtLeast(Duration.ofHours(2)).maxHold(Duration.ofHours(1)).acquire()),
        one("holder", () -> lock.holder("h".repeat(257))),
        one("metadata", () -> lock.metadata(Map.of("k", "v".repeat(4_096)))),
        one("lease_id", () -> CLIENT.adopt("1-1-1-1-1")),
        one("lease_id", () -> CLIENT.adopt(null)),
        one("urls", Ringfence::connect),
        one("urls[0]", () -> Ringfence.connect("localhost:7401")),
        one("urls[0]", () -> Ringfence.connect((String) null)),
        one("urls[1]", () -> Ringfence.connect("http://a:1", "https://b:1")),
        one("urls[0]", () -> Ringfence.connect("http://a:1/path")),
        one("credential", () -> Ringfence.builder("http://a:1").credential("secret").connect()),
        one("credential", () -> Ringfence.builder("https://a:1").credential("two words").connect()));
  }

  private static Arguments one(String field, Executable call) {
    return Arguments.of(field, call);
  }

  @ParameterizedTest
  @MethodSource("wrong")
  void theErrorNamesTheField(String field, Executable call) {
    assertEquals(field, assertThrows(InvalidException.class, call).field());
  }

  @Test
  void anErrorShowsNoPassword() {
    InvalidException error =
        assertThrows(InvalidException.class, () -> Ringfence.connect("https://user:s3cret@a:1"));
    assertFalse(error.getMessage().contains("s3cret"), error.getMessage());
  }

  @Test
  void aPositiveTimeStaysOne() {
    assertEquals(1, Checks.ms("wait", Duration.ofNanos(1)));
  }

  @Test
  void aBoundOfACallMayBeForEver() {
    assertEquals(1_000_000_000_000_000_000L, Checks.nanos("timeout", Duration.ofSeconds(Long.MAX_VALUE)));
    assertThrows(InvalidException.class, () -> Checks.nanos("timeout", Duration.ofMillis(-1)));
    assertThrows(InvalidException.class, () -> Checks.nanos("timeout", null));
  }

  @Test
  void aNameOfOthersIsOneSegment() {
    assertEquals("cron/sync http:%2F%2Fx%2Fy", Claim.keyOf("cron/", "sync http://x/y"));
    assertEquals("cron/100%25%0A/%C2%85", Claim.keyOf("cron/", "100%\n", "\u0085"));
    assertEquals("cron/%2E%2E/...", Claim.keyOf("cron/", "..", "..."));
    String longest = "\u5831".repeat(169);
    assertEquals("cron/" + longest, Claim.keyOf("cron/", longest));
    // As in Go.
    String hash = "%sha256:bfe74e658a11767ad880a4bef912409b35316ad98e5003213342fe45c96527e3";
    assertEquals("cron/" + hash, Claim.keyOf("cron/", longest + "\u544a"));
    assertEquals("cron/" + hash + "/" + hash, Claim.keyOf("cron/", longest + "\u544a", longest + "\u544a"));
  }
}
