package dev.ringfence;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

final class ClockTest {
  private static final Duration SLEEP = Duration.ofMinutes(10);

  @TempDir Path folder;

  private static void awaitSleep(Clock clock, Moment before) throws Exception {
    Program.until("the sleep counts", () -> clock.now().hasReached(before.plus(SLEEP.toNanos())));
  }

  @Test
  void aSleepCountsWhereTheFileCannotBeOpenedAgain() throws Exception {
    Path path = folder.resolve("uptime");
    try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw")) {
      file.write("1000.00 1.00\n".getBytes(StandardCharsets.US_ASCII));
      Clock clock = new Clock.SystemClock(path.toString(), System::currentTimeMillis);
      Moment before = clock.now();
      Files.delete(path);
      file.seek(0);
      file.write("1600.00 1.00\n".getBytes(StandardCharsets.US_ASCII));
      awaitSleep(clock, before);
    }
  }

  @Test
  void aLeapOfTheWallClockCountsWhereThereIsNoFile() throws Exception {
    AtomicLong asleep = new AtomicLong();
    Clock clock =
        new Clock.SystemClock(
            folder.resolve("none").toString(), () -> System.currentTimeMillis() + asleep.get());
    Moment before = clock.now();
    asleep.set(SLEEP.toMillis());
    awaitSleep(clock, before);
    // Readings do not add up what the wall clock is read too coarsely.
    Moment begun = clock.now();
    Moment now = begun;
    while (now.monotonic() - begun.monotonic() < 300 * Checks.MS) {
      now = clock.now();
    }
    long more = now.uptime() - begun.uptime() - (now.monotonic() - begun.monotonic());
    assertTrue(more < 100 * Checks.MS, more + " ns");
  }

  @Test
  void aLeapCountsOnceTheFileCannotBeRead() throws Exception {
    Path path = folder.resolve("uptime");
    Files.writeString(path, "1000.00 1.00\n");
    AtomicLong asleep = new AtomicLong();
    Clock clock = new Clock.SystemClock(path.toString(), () -> System.currentTimeMillis() + asleep.get());
    Moment before = clock.now();
    Files.writeString(path, "");
    asleep.set(SLEEP.toMillis());
    awaitSleep(clock, before);
  }
}
