//! Plays rslock with one server, and tells the runner how each step went.

use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rslock::{LockError, LockManager};
use tokio::time::sleep;

type Done = Result<(), Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(10);

struct Play {
    locks: LockManager,
    redis: redis::aio::MultiplexedConnection,
    is_on_ringfence: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let url = format!("redis://{}:{}", env::var("LOCKS_HOST")?, env::var("LOCKS_PORT")?);
    let mut locks = LockManager::new(vec![url.as_str()]);
    locks.set_retry(0, Duration::from_millis(20));
    let redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut play = Play { locks, redis, is_on_ringfence: !env::var("LOCKS_HTTP")?.is_empty() };
    println!("version 0.10.0");
    report("acquires_extends_and_releases", play.acquires_extends_and_releases(&key("acquires")).await);
    report("a_late_release_spares_the_newer_holder", play.a_late_release(&key("late")).await);
    report("using_extends", play.using_extends(&key("using")).await);
    if play.is_on_ringfence {
        report("a_grant_has_a_larger_token", play.a_grant_has_a_larger_token(&key("token")).await);
    }
    Ok(())
}

fn key(step: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    format!("{step}-{}", now.as_nanos())
}

fn report(step: &str, done: Done) {
    match done {
        Ok(()) => println!("ok {step}"),
        Err(error) => println!("failed {step}: {}", error.to_string().replace('\n', " ")),
    }
}

fn check(holds: bool, what: &str) -> Done {
    if holds { Ok(()) } else { Err(format!("it does not hold: {what}").into()) }
}

impl Play {
    async fn time_left_ms(&mut self, key: &str) -> Result<i64, redis::RedisError> {
        redis::cmd("PTTL").arg(key).query_async(&mut self.redis).await
    }

    async fn value(&mut self, key: &str) -> Result<Option<Vec<u8>>, redis::RedisError> {
        redis::cmd("GET").arg(key).query_async(&mut self.redis).await
    }

    async fn acquires_extends_and_releases(&mut self, key: &str) -> Done {
        let lock = self.locks.lock(key, LONG).await?;
        check(self.value(key).await?.as_ref() == Some(&lock.val), "it is in the key")?;
        let refused = matches!(self.locks.lock(key, LONG).await, Err(LockError::Unavailable));
        check(refused, "a second one is refused")?;
        self.locks.extend(&lock, LONG * 2).await?;
        check(self.time_left_ms(key).await? > 17_000, "it is longer")?;
        self.locks.unlock(&lock).await;
        check(self.value(key).await?.is_none(), "it is free")?;
        self.locks.lock(key, LONG).await?.release().await;
        check(self.value(key).await?.is_none(), "it is free again")
    }

    async fn a_late_release(&mut self, key: &str) -> Done {
        let late = self.locks.lock(key, Duration::from_millis(300)).await?;
        let newer = loop {
            match self.locks.lock(key, LONG).await {
                Ok(lock) => break lock,
                Err(LockError::Unavailable) => sleep(Duration::from_millis(20)).await,
                Err(error) => return Err(error.into()),
            }
        };
        self.locks.unlock(&late).await;
        check(self.locks.extend(&late, LONG).await.is_err(), "the late one is not extended")?;
        check(self.value(key).await?.as_ref() == Some(&newer.val), "the newer holder has it")?;
        self.locks.unlock(&newer).await;
        Ok(())
    }

    async fn using_extends(&mut self, key: &str) -> Done {
        let mut redis = self.redis.clone();
        let name = key.to_owned();
        let work = async move || {
            let (mut before, mut times) = (i64::MAX, 0);
            while times < 5 {
                let now: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut redis).await?;
                times += i32::from(now > before);
                before = now;
                sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, redis::RedisError>(before)
        };
        let left = self.locks.using(key.as_bytes(), Duration::from_secs(1), work).await??;
        check(left > 0, "it is held until the end")?;
        check(self.value(key).await?.is_none(), "it is free")
    }

    async fn a_grant_has_a_larger_token(&mut self, key: &str) -> Done {
        let mut tokens: Vec<i64> = Vec::new();
        for _ in 0..2 {
            let lock = self.locks.lock(key, LONG).await?;
            let command = redis::cmd("RINGFENCE.TOKEN").arg(key).arg(&lock.val).to_owned();
            tokens.push(command.query_async(&mut self.redis).await?);
            self.locks.unlock(&lock).await;
        }
        check(0 < tokens[0] && tokens[0] < tokens[1], "tokens increase")
    }
}
