package dev.ringfence;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.SQLException;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.postgresql.ds.PGSimpleDataSource;

/** A program that a test starts, with a folder of its own, at an address of its own. */
public final class Program implements AutoCloseable {
  final String host;
  final Path folder;
  private final Process process;

  private Program(String host, Path folder, List<String> command) throws IOException {
    this.host = host;
    this.folder = folder;
    File log = folder.resolve("log").toFile();
    process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log).directory(folder.toFile()).start();
    Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
  }

  /** A node that is a cluster of its own, once it grants. */
  public static Program node() throws Exception {
    String program = System.getenv("RINGFENCE_UNDER_TEST");
    String host = address();
    Path folder = Files.createTempDirectory("ringfence-java-");
    List<String> command =
        List.of(
            program == null ? "ringfence" : Path.of(program).toAbsolutePath().toString(), "serve", "--id", "1", "--data",
            folder.resolve("data").toString(), "--http", host + ":7401", "--peer", host + ":7501", "--peers",
            "1=" + host + ":7501");
    Program node = new Program(host, folder, command);
    try (Ringfence client = Ringfence.connect(node.url())) {
      until(
          "the node grants; see " + folder,
          () -> {
            try {
              client.lock("ready").acquire().close();
              return true;
            } catch (RingfenceException error) {
              return false;
            }
          });
    }
    return node;
  }

  /** That of a PostgreSQL. */
  public PGSimpleDataSource database() {
    PGSimpleDataSource database = new PGSimpleDataSource();
    database.setUrl("jdbc:postgresql://" + host + ":5432/postgres?user=postgres");
    return database;
  }

  /** A PostgreSQL, from the system's packages. It refuses to run as root, so as root it runs as the user {@code nobody}. */
  public static Program postgres() throws Exception {
    Path folder = Files.createTempDirectory("ringfence-java-");
    String host = address();
    boolean isRoot = System.getProperty("user.name").equals("root");
    if (isRoot) {
      new ProcessBuilder("chown", "nobody", folder.toString()).inheritIO().start().waitFor();
    }
    String script =
        "p=$(ls -d /usr/lib/postgresql/*/bin | tail -1); "
            + "$p/initdb -D data --username=postgres --auth=trust --encoding=UTF8 --no-locale --no-sync >/dev/null && "
            + ("exec $p/postgres -D data -h " + host + " -p 5432 -c unix_socket_directories= -c fsync=off");
    List<String> own = List.of("bash", "-c", script);
    List<String> other = List.of("setpriv", "--reuid=nobody", "--clear-groups", "bash", "-c", script);
    Program postgres = new Program(host, folder, isRoot ? other : own);
    until(
        "PostgreSQL is ready; see " + folder,
        () -> {
          try {
            postgres.database().getConnection().close();
            return true;
          } catch (SQLException error) {
            return false;
          }
        });
    return postgres;
  }

  public String url() {
    return "http://" + host + ":7401";
  }

  /** Waits for a condition. */
  public static void until(String what, Callable<Boolean> condition) throws Exception {
    long begun = System.nanoTime();
    while (!condition.call()) {
      if (System.nanoTime() - begun > TimeUnit.SECONDS.toNanos(60)) {
        throw new AssertionError("not within a minute: " + what);
      }
      Thread.sleep(10);
    }
  }

  /** Of the loopback interface. Ports that another program has do not matter there. */
  public static String address() {
    ThreadLocalRandom random = ThreadLocalRandom.current();
    return "127." + random.nextInt(1, 251) + "." + random.nextInt(1, 251) + "." + random.nextInt(1, 251);
  }

  @Override
  public void close() throws InterruptedException {
    process.destroy();
    if (!process.waitFor(20, TimeUnit.SECONDS)) {
      process.destroyForcibly().waitFor();
    }
    try (Stream<Path> files = Files.walk(folder)) {
      files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
