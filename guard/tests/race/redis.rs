use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use ringfence_guard::redis::RedisGuard;
use ringfence_guard::{Admission, Claim};
use ringfence_harness::RedisServer;

use crate::pool::Pool;
use crate::race::race;
use crate::resource::Resource;

/// A number in Redis, with or without a guard.
struct Number {
    pool: Pool<MultiplexedConnection>,
    server: RedisServer,
    guard: Option<RedisGuard>,
}

impl Number {
    fn new(guard: Option<RedisGuard>) -> Self {
        let pool = Pool::new();
        let server = pool.block_on(RedisServer::builder().start()).unwrap();
        let number = Self { pool, server, guard };
        number.with(async |redis| redis.set::<_, _, ()>("number", 0).await.unwrap());
        number
    }

    fn with<T>(&self, what: impl AsyncFnOnce(&mut MultiplexedConnection) -> T) -> T {
        let connect = async || {
            let client = redis::Client::open(self.server.url()).unwrap();
            client.get_multiplexed_async_connection().await.unwrap()
        };
        self.pool.with(connect, what)
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        match &self.guard {
            Some(guard) => self.with(async |redis| guard.touch(redis, claim).await.unwrap()),
            None => Admission::Accepted(()),
        }
    }

    fn read(&self) -> u64 {
        self.with(async |redis| redis.get("number").await.unwrap())
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.with(async |redis| match &self.guard {
            Some(guard) => guard.set(redis, claim, "number", number).await.unwrap(),
            None => {
                redis.set::<_, _, ()>("number", number).await.unwrap();
                Admission::Accepted(())
            }
        })
    }
}

#[test]
fn redis_rejects_late_holders_and_nobody_else() {
    race(&Number::new(Some(RedisGuard::new(&"number".parse().unwrap()).unwrap()))).assert_right();
}

#[test]
#[ignore = "slow"]
fn redis_without_a_guard_loses_updates() {
    race(&Number::new(None)).assert_wrong();
}
