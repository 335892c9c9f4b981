package dev.ringfence;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.util.function.LongSupplier;

/**
 * The clock that leases are measured on.
 *
 * <p>It has to count the time that the machine sleeps, which {@code System.nanoTime()} does not do on Linux; {@code /proc/uptime} does
 * (it is {@code CLOCK_BOOTTIME}), in steps of 10 ms. So each reading is of both, and an instant has come once it has by either. Where
 * there is no such file, a leap of the wall clock counts as sleep, whatever it was. Java reads no clock that a time service cannot slew:
 * while one slows the machine's clocks down, a lease is counted too long by as much. Only the token helps then.
 */
@FunctionalInterface
interface Clock {
  /** For how long a reading of the uptime is good: far less than one of its steps. */
  long GOOD = 1_000_000;

  /** Reads both clocks. */
  Moment now();

  /** The clocks of this machine. */
  Clock SYSTEM = new SystemClock("/proc/uptime", System::currentTimeMillis);

  /** Nanoseconds since this class was loaded, for what does not have to count sleep. Never negative. */
  static long nanos() {
    return System.nanoTime() - SystemClock.BEGUN;
  }

  /** The system's clocks. To read the uptime takes longer than the rest, so a reading is used again for a millisecond. */
  final class SystemClock implements Clock {
    private static final long BEGUN = System.nanoTime();
    /** Less is no leap: the wall clock is read in milliseconds, a moment later than the other. */
    private static final long STEP = 10 * Checks.MS;

    private final LongSupplier wallMs;
    /** Open for good, as a program may run out of descriptors. {@code null} once it could not be read. */
    private RandomAccessFile uptime;

    private volatile Reading last;

    SystemClock(String file, LongSupplier wallMs) {
      this.wallMs = wallMs;
      try {
        uptime = new RandomAccessFile(file, "r");
      } catch (IOException | RuntimeException hidden) {
        // A sandbox hides it, or it is another system.
      }
      long monotonic = nanos();
      last = read(new Reading(monotonic, wallMs.getAsLong(), monotonic));
    }

    private record Reading(long monotonic, long wall, long uptime) {}

    @Override
    public Moment now() {
      Reading known = last;
      // The wall clock, too, counts the time that the machine sleeps.
      boolean isGood =
          nanos() - known.monotonic < GOOD && Math.abs(wallMs.getAsLong() - known.wall) <= GOOD / 1_000_000;
      if (!isGood) {
        known = last = read(known);
      }
      // Read last, so that a pause between the two makes the reading newer.
      return new Moment(nanos(), known.uptime);
    }

    private synchronized Reading read(Reading known) {
      long monotonic = nanos();
      long wall = wallMs.getAsLong();
      if (uptime != null) {
        try {
          byte[] bytes = new byte[64];
          uptime.seek(0);
          int count = uptime.read(bytes);
          String text = new String(bytes, 0, count, StandardCharsets.US_ASCII);
          String[] parts = text.substring(0, text.indexOf(' ')).split("\\.", 2);
          return new Reading(monotonic, wall, Long.parseLong(parts[0] + parts[1]) * 10_000_000);
        } catch (IOException | RuntimeException broken) {
          uptime = null;
        }
      }
      long passed = monotonic - known.monotonic;
      long leap = (wall - known.wall) * Checks.MS - passed;
      return new Reading(monotonic, wall, known.uptime + passed + (leap > STEP ? leap : 0));
    }
  }
}
