package acceptance;

import java.nio.charset.StandardCharsets;
import org.springframework.data.redis.connection.RedisConnection;
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
        return template.getExpire(key, java.util.concurrent.TimeUnit.MILLISECONDS);
    }

    /** The fencing token of the key's holder. */
    long token(String key) {
        byte[] name = key.getBytes(StandardCharsets.UTF_8);
        try (RedisConnection connection = factory.getConnection()) {
            Object found = connection.execute("RINGFENCE.TOKEN", name, get(key).getBytes(StandardCharsets.UTF_8));
            return found instanceof Long token ? token : Long.parseLong(new String((byte[]) found, StandardCharsets.UTF_8));
        }
    }
}
