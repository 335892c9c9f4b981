package dev.ringfence;

import java.io.FileInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * The clock that leases are measured on.
 *
 * <p>It has to count the time that the machine sleeps, which {@code System.nanoTime()} does not do on Linux; {@code /proc/uptime} does
 * (it is {@code CLOCK_BOOTTIME}), in steps of 10 ms. So each reading is of both, and an instant has come once it has by either. Java
 * reads no clock that a time service cannot slew: while one slows the machine's clocks down, a lease is counted too long by as much.
 * Only the token helps then.
 */
@FunctionalInterface
interface Clock {
  /** For how long a reading of the uptime is good: far less than one of its steps. */
  long GOOD = 1_000_000;

  /** Reads both clocks. */
  Moment now();

  /** The clocks of this machine. */
  Clock SYSTEM = new SystemClock();

  /** Nanoseconds since this class was loaded, for what does not have to count sleep. Never negative. */
  static long nanos() {
    return System.nanoTime() - SystemClock.BEGUN;
  }

  /** The system's clocks. To read the uptime takes longer than the rest, so a reading is used again for a millisecond. */
  final class SystemClock implements Clock {
    private static final long BEGUN = System.nanoTime();
    private volatile Reading last = read();

    private record Reading(long monotonic, long wall, long uptime) {}

    @Override
    public Moment now() {
      Reading known = last;
      // The wall clock, too, counts the time that the machine sleeps.
      boolean isGood =
          nanos() - known.monotonic < GOOD && Math.abs(System.currentTimeMillis() - known.wall) <= GOOD / 1_000_000;
      if (!isGood) {
        known = last = read();
      }
      // Read last, so that a pause between the two makes the reading newer.
      return new Moment(nanos(), known.uptime);
    }

    private Reading read() {
      long monotonic = nanos();
      long wall = System.currentTimeMillis();
      try (FileInputStream file = new FileInputStream("/proc/uptime")) {
        String text = new String(file.readNBytes(64), StandardCharsets.US_ASCII);
        String[] parts = text.substring(0, text.indexOf(' ')).split("\\.", 2);
        return new Reading(monotonic, wall, Long.parseLong(parts[0] + parts[1]) * 10_000_000);
      } catch (IOException | RuntimeException hidden) {
        // A sandbox hides it, or it is another system: as far as the other clock has come since.
        Reading known = last;
        return new Reading(
            monotonic, wall, known == null ? monotonic : known.uptime + monotonic - known.monotonic);
      }
    }
  }
}
