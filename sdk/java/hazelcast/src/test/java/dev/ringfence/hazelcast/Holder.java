package dev.ringfence.hazelcast;

import dev.ringfence.Lease;
import dev.ringfence.Ringfence;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** A program that holds a lock of Hazelcast, and a lease, until it is killed. */
final class Holder {
  static final Duration TTL = Duration.ofSeconds(3);

  private Holder() {}

  /** Starts it, waits until it holds both, and kills it. */
  static void dies(Hazelcast hazelcast, String url, String key) throws Exception {
    Process process =
        new ProcessBuilder(
                System.getProperty("java.home") + "/bin/java", "-cp", System.getProperty("java.class.path"),
                Holder.class.getName(), hazelcast.host, url, key)
            .redirectError(ProcessBuilder.Redirect.DISCARD)
            .start();
    try (BufferedReader lines =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
      if (lines.readLine() == null) {
        throw new IOException("it has ended before it held anything");
      }
    } finally {
      process.destroyForcibly().waitFor();
    }
  }

  public static void main(String[] arguments) throws Exception {
    String key = arguments[2];
    Hazelcast.client(arguments[0]).getCPSubsystem().getLock(key).lock();
    Lease lease = Ringfence.connect(arguments[1]).lock(key).ttl(TTL).acquire();
    System.out.println("holds");
    lease.awaitLoss(Duration.ofDays(1));
  }
}
