package acceptance;

import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;

/** Plays the scenarios of Java's lock libraries, and tells the runner how each step went. */
public final class Main {
    static final String HOST = System.getenv("LOCKS_HOST");
    static final int PORT = Integer.parseInt(System.getenv("LOCKS_PORT"));
    /** Whether the server is a node of Ringfence, and not a Redis. */
    static final boolean ON_RINGFENCE = !System.getenv("LOCKS_HTTP").isEmpty();

    /** What a step does with a new key. It fails by an exception. */
    interface Play {
        void with(String key) throws Exception;
    }

    record Step(String name, Play play) {}

    public static void main(String[] arguments) throws Exception {
        Map<String, Callable<List<Step>>> scenarios =
                Map.of("shedlock", ShedLock::steps, "spring", SpringLocks::steps, "redisson", RedissonLocks::steps);
        System.out.println("version " + arguments[1]);
        for (Step step : scenarios.get(arguments[0]).call()) {
            try {
                step.play.with(step.name + "-" + UUID.randomUUID());
                System.out.println("ok " + step.name);
            } catch (Exception | AssertionError error) {
                System.out.println("failed " + step.name + ": " + chain(error).replace('\n', ' '));
            }
        }
        // The clients have threads of their own.
        System.exit(0);
    }

    /** What an error says, and its causes. */
    static String chain(Throwable error) {
        return error.getCause() == null ? error.toString() : error + ": " + chain(error.getCause());
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("it does not hold: " + what);
        }
    }

    /** Looks until it holds. */
    static void until(Callable<Boolean> look, String what) throws Exception {
        long end = System.nanoTime() + 20_000_000_000L;
        while (!look.call()) {
            check(System.nanoTime() < end, what + ", within 20 s");
            Thread.sleep(20);
        }
    }

    private Main() {}
}
