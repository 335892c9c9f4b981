package acceptance;

import static acceptance.Main.check;

import acceptance.Main.Step;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson: its locks are hashes, and their waiters subscribe. Ringfence refuses them. */
final class RedissonLocks {
    static List<Step> steps() {
        return List.of(new Step(Main.ON_RINGFENCE ? "isRefused" : "locksAndUnlocks", RedissonLocks::tryIt));
    }

    private static void tryIt(String key) {
        Config config = new Config();
        config.useSingleServer()
                .setAddress("redis://" + Main.HOST + ":" + Main.PORT)
                .setRetryAttempts(0)
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
        RedissonClient client = Redisson.create(config);
        try {
            check(client.getLock(key).tryLock(), "it is free");
            client.getLock(key).unlock();
            check(!Main.ON_RINGFENCE, "it is refused");
        } catch (RuntimeException refused) {
            check(Main.ON_RINGFENCE && Main.chain(refused).contains("ringfence"), "it says why: " + Main.chain(refused));
        } finally {
            client.shutdown();
        }
    }

    private RedissonLocks() {}
}
