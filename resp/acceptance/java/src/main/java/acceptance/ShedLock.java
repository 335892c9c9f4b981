package acceptance;

import static acceptance.Main.check;
import static acceptance.Main.until;

import acceptance.Main.Step;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;

/** ShedLock, with its provider for Redis over Spring Data and Lettuce. */
final class ShedLock {
    private final Connection connection = new Connection();
    private final RedisLockProvider locks = provider(true);

    static List<Step> steps() {
        ShedLock shedLock = new ShedLock();
        return List.of(
                new Step("locksAndUnlocks", shedLock::locksAndUnlocks),
                new Step("locksAndUnlocksAsByDefault", shedLock::locksAndUnlocksAsByDefault),
                new Step("keepsItForAtLeast", shedLock::keepsItForAtLeast),
                new Step("extends", shedLock::extendsIt),
                new Step("aLateUnlockSparesTheNewerHolder", shedLock::aLateUnlockSparesTheNewerHolder));
    }

    /** Without safe updates, which is the default, an unlock deletes the key of any holder. */
    private RedisLockProvider provider(boolean isSafe) {
        return new RedisLockProvider.Builder(connection.factory).environment("test").safeUpdate(isSafe).build();
    }

    private Optional<SimpleLock> lock(String name, long mostMs, long leastMs) {
        return lock(locks, name, mostMs, leastMs);
    }

    private static Optional<SimpleLock> lock(RedisLockProvider locks, String name, long mostMs, long leastMs) {
        return locks.lock(new LockConfiguration(Instant.now(), name, Duration.ofMillis(mostMs), Duration.ofMillis(leastMs)));
    }

    private static String key(String name) {
        return "job-lock:test:" + name;
    }

    private void locksAndUnlocks(String name) {
        SimpleLock lock = lock(name, 10_000, 0).orElseThrow();
        check(lock(name, 10_000, 0).isEmpty(), "a second one is refused");
        lock.unlock();
        check(connection.get(key(name)) == null, "it is free");
        lock(name, 10_000, 0).orElseThrow().unlock();
    }

    private void locksAndUnlocksAsByDefault(String name) {
        RedisLockProvider unsafe = provider(false);
        SimpleLock lock = lock(unsafe, name, 10_000, 0).orElseThrow();
        SimpleLock longer = lock.extend(Duration.ofSeconds(20), Duration.ofSeconds(5)).orElseThrow();
        check(connection.pttl(key(name)) > 17_000, "it is longer");
        longer.unlock();
        check(connection.pttl(key(name)) <= 5_000, "it is kept for a while");
    }

    private void keepsItForAtLeast(String name) throws Exception {
        lock(name, 60_000, 1_500).orElseThrow().unlock();
        check(connection.get(key(name)) != null, "it is kept after the work");
        check(connection.pttl(key(name)) <= 1_500, "its time is shorter now");
        until(() -> lock(name, 10_000, 0).isPresent(), "the next one gets it");
    }

    private void extendsIt(String name) {
        SimpleLock lock = lock(name, 10_000, 0).orElseThrow();
        SimpleLock longer = lock.extend(Duration.ofSeconds(20), Duration.ZERO).orElseThrow();
        check(connection.pttl(key(name)) > 17_000, "it is longer");
        longer.unlock();
        check(connection.get(key(name)) == null, "it is free");
    }

    private void aLateUnlockSparesTheNewerHolder(String name) throws Exception {
        SimpleLock late = lock(name, 300, 0).orElseThrow();
        until(() -> lock(name, 10_000, 0).isPresent(), "the next one gets it");
        String newer = connection.get(key(name));
        late.unlock();
        check(newer.equals(connection.get(key(name))), "the newer holder has it");
    }
}
