package acceptance;

import static acceptance.Main.check;
import static acceptance.Main.until;

import acceptance.Main.Step;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;

/** Spring Integration's RedisLockRegistry, whose waiters poll. */
final class SpringLocks {
    private final Connection connection = new Connection();

    static List<Step> steps() {
        SpringLocks spring = new SpringLocks();
        List<Step> steps = new ArrayList<>(List.of(
                new Step("locksAndUnlocks", spring::locksAndUnlocks),
                new Step("aWaiterGetsItNext", spring::aWaiterGetsItNext),
                new Step("aLateUnlockSparesTheNewerHolder", spring::aLateUnlockSparesTheNewerHolder)));
        if (Main.ON_RINGFENCE) {
            steps.add(new Step("waitingForMessagesIsRefused", spring::waitingForMessagesIsRefused));
        }
        return steps;
    }

    /** The locks of a process. */
    private RedisLockRegistry registry(long ttlMs) {
        return new RedisLockRegistry(connection.factory, "locks", ttlMs);
    }

    private void locksAndUnlocks(String key) {
        Lock first = registry(10_000).obtain(key);
        Lock second = registry(10_000).obtain(key);
        for (int turn = 0; turn < 2; turn += 1) {
            check(first.tryLock(), "it is free");
            check(first.tryLock(), "its holder gets it again");
            check(!second.tryLock(), "a second one is refused");
            first.unlock();
            check(!second.tryLock(), "it is held still");
            first.unlock();
            check(connection.get("locks:" + key) == null, "it is free again");
        }
    }

    private void aWaiterGetsItNext(String key) throws Exception {
        Lock second = registry(10_000).obtain(key);
        check(registry(300).obtain(key).tryLock(), "it is free");
        check(second.tryLock(20, TimeUnit.SECONDS), "it is free again");
        second.unlock();
    }

    private void aLateUnlockSparesTheNewerHolder(String key) throws Exception {
        Lock late = registry(300).obtain(key);
        Lock newer = registry(10_000).obtain(key);
        check(late.tryLock(), "it is free");
        until(newer::tryLock, "the next one gets it");
        String value = connection.get("locks:" + key);
        try {
            late.unlock();
            throw new IllegalArgumentException("the late unlock did not fail");
        } catch (java.util.ConcurrentModificationException | IllegalStateException expected) {
            check(value.equals(connection.get("locks:" + key)), "the newer holder has it");
        }
        newer.unlock();
    }

    private void waitingForMessagesIsRefused(String key) throws Exception {
        check(registry(10_000).obtain(key).tryLock(), "it is free");
        RedisLockRegistry registry = registry(10_000);
        registry.setRedisLockType(RedisLockType.PUB_SUB_LOCK);
        try {
            registry.obtain(key).tryLock(2, TimeUnit.SECONDS);
            throw new IllegalArgumentException("nothing was refused");
        } catch (RuntimeException refused) {
            check(Main.chain(refused).contains("ringfence"), "it says why: " + Main.chain(refused));
        }
    }
}
