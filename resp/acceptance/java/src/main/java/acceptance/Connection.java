package acceptance;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.core.script.DefaultRedisScript;

/** Lettuce, as Spring uses it. */
final class Connection {
    final LettuceConnectionFactory factory = new LettuceConnectionFactory(Main.HOST, Main.PORT);
    private final StringRedisTemplate template;

    Connection() {
        factory.afterPropertiesSet();
        factory.start();
        template = new StringRedisTemplate(factory);
    }

    String get(String key) {
        return template.opsForValue().get(key);
    }

    /** What is left of the key in milliseconds. */
    long pttl(String key) {
        return template.getExpire(key, TimeUnit.MILLISECONDS);
    }

    /** The token of the lock with this value, by a script: Spring cannot send commands that it does not know. */
    long token(String key) {
        String text = "return redis.call('RINGFENCE.TOKEN', KEYS[1], ARGV[1])";
        return template.execute(new DefaultRedisScript<>(text, Long.class), List.of(key), get(key));
    }
}
