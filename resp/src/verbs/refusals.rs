use crate::refused::{Kind, Refused};

/// Why commands that lock libraries may send are refused, and their names.
const REASONS: &[(&str, &str)] = &[
    (
        "a lock needs a time after which it ends: use SET with NX, XX or IFEQ, and PX or EX",
        "getset mset msetnx append incr incrby decr decrby setrange",
    ),
    (
        "no wall clock decides about locks: use times from now",
        "time expireat pexpireat expiretime pexpiretime",
    ),
    (
        "nothing is sent to those who wait, so a waiter would sleep for ever: try again from time to time, or wait over HTTP",
        "subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe pubsub spublish blpop brpop blmpop blmove \
         brpoplpush bzpopmin bzpopmax bzmpop xread xreadgroup monitor sync psync",
    ),
    (
        "locks cannot be listed or moved here: `GET /v1/keys` over HTTP lists them",
        "keys scan dbsize randomkey rename renamenx copy move object dump restore",
    ),
    (
        "this is no Redis server: operators use `ringfence`, and `POST /v1/revoke` over HTTP ends a lock",
        "flushall flushdb swapdb save bgsave shutdown replicaof slaveof failover debug acl slowlog latency memory",
    ),
    (
        "a lock is a string with a time after which it ends, and there are no other types",
        "hget hset hsetnx hmget hmset hgetall hdel hexists hincrby hlen hkeys hvals hpexpire sadd srem sismember smembers scard \
         spop hscan sscan zscan hincrbyfloat zadd zrem zrange zrangebyscore zremrangebyscore zremrangebyrank zscore zrank zrevrank zrevrange zrevrangebyscore zinter zunion zdiff zcard zincrby zcount llen lrange \
         lindex lset ltrim linsert lpos lpop rpop lrem lpushx rpushx xadd xdel xinfo xgroup xack xtrim strlen getbit setbit bitpos bitcount bitop bitfield geoadd geopos geosearch pfadd pfcount",
    ),
    ("use GET, DEL, DELEX and EXISTS", "touch"),
    ("functions are not kept: use EVAL", "function fcall fcall_ro"),
    ("use WAIT: what is answered is on the disks of a majority", "waitaof"),
];

/// How many bytes of a name are quoted.
const QUOTED: usize = 32;

/// The error for a command that is refused or unknown.
pub(super) fn unknown(name: &[u8]) -> Refused {
    if let Some((name, why)) = reason(name) {
        return Refused::unsupported(&format!("{}: {why}", name.to_uppercase()));
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-|".contains(byte);
    let quoted: Vec<u8> = name.iter().copied().take_while(is_plain).take(QUOTED).collect();
    let quoted = String::from_utf8_lossy(&quoted);
    Refused::new(Kind::Unknown, format!("ERR unknown command '{quoted}'"))
}

/// The name of a refused command, as in the metrics, and the reason.
pub(super) fn reason(name: &[u8]) -> Option<(&'static str, &'static str)> {
    REASONS.iter().find_map(|(why, names)| {
        let named = names.split_whitespace().find(|known| known.as_bytes().eq_ignore_ascii_case(name));
        named.map(|name| (name, *why))
    })
}
