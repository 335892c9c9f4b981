package acceptance;

import java.util.concurrent.TimeUnit;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;

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
}
