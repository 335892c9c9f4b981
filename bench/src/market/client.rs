//! A seller or a buyer: what the book has them do, in each way.
//!
//! Both read, decide and write. `WATCH` (the write is refused), a lock, or a lease keeps others from writing in between;
//! Redis compares the lease's token atomically with each read and write. The commands are the same in all ways, and those
//! of one step go in one round trip.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Arg, AsyncConnectionConfig, FromRedisValue, Pipeline, Script, Value};
use ringfence_guard::Claim;
use ringfence_guard::redis::RedisGuard;
use ringfence_harness::HttpConnection;
use ringfence_wire::{Key, LeaseId};
use tokio::time::sleep;
use uuid::Uuid;

use super::goods::{Item, Offer, User, inventory, users};
use crate::calls::{self, Times};
use crate::service::redis as redis_lock;

/// The TTL of locks and leases, and the longest wait for a lease.
const TTL_MS: u32 = 60_000;
/// The shortest TTL there is: for a client that is to outlive its lease.
const SHORT_MS: u32 = 100;
/// The server may stall on its disk for this long.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause before a lock that was held is tried again, as in the book.
const RETRY: Duration = Duration::from_millis(1);
/// A buyer takes one of this many.
const CHEAPEST: usize = 100;
static DELETE_IF_OWN: LazyLock<Script> = LazyLock::new(|| Script::new(redis_lock::DELETE_IF_OWN));
static GUARDED: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("guarded.lua")));

/// How clients exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Not at all: `EXEC` detects a conflict.
    Watch,
    /// A lock in the Redis that holds the data.
    Lock(Grain),
    /// A lease of Ringfence, and a guard in Redis.
    Lease(Grain),
}

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    Market,
    Item,
}

/// Where clients trade.
#[derive(Clone, Debug)]
pub(crate) struct Venue {
    pub(crate) way: Way,
    pub(crate) redis: redis::Client,
    /// Of the cluster, if there are leases.
    pub(crate) leader: Option<SocketAddr>,
}

/// A client with connections of its own.
pub(crate) struct Client {
    way: Way,
    redis: MultiplexedConnection,
    leases: Option<HttpConnection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The item was sold.
    Gone,
    /// By `EXEC`, because another client wrote what was watched; or by the guard, because the token is stale.
    Refused,
}

/// What a client holds from before it reads until it has written.
enum Held {
    Watched,
    Locked { name: String, value: String },
    Leased { lease: LeaseId, guard: RedisGuard, claim: Claim },
}

impl Venue {
    /// A connection to Redis.
    pub(crate) async fn redis(&self) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        Ok(self.redis.get_multiplexed_async_connection_with_config(&config).await?)
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let leases = match self.leader {
            Some(leader) => Some(HttpConnection::open(leader).await?),
            None => None,
        };
        Ok(Client { way: self.way, redis: self.redis().await?, leases })
    }
}

impl Client {
    /// One of the cheapest offers. Where there are few it may find none.
    pub(crate) async fn look(&mut self) -> Result<Option<Offer>> {
        let place = fastrand::usize(..CHEAPEST);
        let mut command = redis::cmd("ZRANGE");
        command.arg("market:").arg(place).arg(place).arg("WITHSCORES");
        let found: Vec<(String, i64)> = command.query_async(&mut self.redis).await?;
        found.first().map(|(member, price)| Offer::parse(member, *price)).transpose()
    }

    /// Moves an item from its seller's inventory to the market.
    pub(crate) async fn list(&mut self, offer: Offer) -> Result<Outcome> {
        let Offer { item, seller, price } = offer;
        let held = self.acquire(item, TTL_MS, &[&inventory(seller)]).await?;
        let mut read = redis::pipe();
        read.cmd("SISMEMBER").arg(inventory(seller)).arg(item);
        let mut write = redis::pipe();
        write.atomic();
        write.cmd("ZADD").arg("market:").arg(price).arg(offer.member());
        write.cmd("SREM").arg(inventory(seller)).arg(item);
        let outcome = match self.run(&held, &read).await? {
            None => Outcome::Refused,
            Some((false,)) => Outcome::Gone,
            Some((true,)) => self.write(&held, &write).await?,
        };
        self.release(held, outcome).await?;
        Ok(outcome)
    }

    /// Moves an item from the market to the buyer's inventory, and its price to the seller.
    pub(crate) async fn purchase(&mut self, buyer: User, offer: Offer) -> Result<Outcome> {
        let held = self.acquire(offer.item, TTL_MS, &["market:", &users(buyer)]).await?;
        let outcome = match self.run::<(Option<i64>, i64)>(&held, &before(buyer, offer)).await? {
            None => Outcome::Refused,
            Some((price, funds)) if price == Some(offer.price) => {
                ensure!(funds >= offer.price, "{} has no money left", users(buyer));
                self.write(&held, &deal(buyer, offer)).await?
            }
            Some(_) => Outcome::Gone,
        };
        self.release(held, outcome).await?;
        Ok(outcome)
    }

    /// A purchase that pauses between its reads and its writes until `next` has made the same purchase: that one waits for
    /// the lease, and its grant proves that this one's has expired. Returns the outcome of `next`'s purchase. It is an error
    /// if the late write is not refused.
    pub(crate) async fn purchase_late(
        &mut self,
        next: &mut Self,
        buyer: User,
        offer: Offer,
    ) -> Result<Outcome> {
        let held = self.acquire(offer.item, SHORT_MS, &[]).await?;
        self.run::<Value>(&held, &before(buyer, offer)).await?;
        let outcome = next.purchase(buyer, offer).await?;
        let late = self.write(&held, &deal(buyer, offer)).await?;
        ensure!(late == Outcome::Refused, "item {}: a stale buyer wrote: {late:?}", offer.item);
        Ok(outcome)
    }

    async fn acquire(&mut self, item: Item, ttl_ms: u32, watched: &[&str]) -> Result<Held> {
        let key = |grain| match grain {
            Grain::Market => "market".to_owned(),
            Grain::Item => format!("items/{item}"),
        };
        match self.way {
            Way::Watch => {
                redis::cmd("WATCH").arg(watched).exec_async(&mut self.redis).await?;
                Ok(Held::Watched)
            }
            Way::Lock(grain) => {
                let (name, value) = (format!("lock:{}", key(grain)), Uuid::new_v4().to_string());
                let mut set = redis::cmd("SET");
                set.arg(&name).arg(&value).arg("NX").arg("PX").arg(ttl_ms);
                while set.query_async::<Option<String>>(&mut self.redis).await?.is_none() {
                    sleep(RETRY).await;
                }
                Ok(Held::Locked { name, value })
            }
            Way::Lease(grain) => self.lease(&key(grain), ttl_ms).await,
        }
    }

    async fn lease(&mut self, key: &str, ttl_ms: u32) -> Result<Held> {
        let lease = LeaseId::random();
        let leases = self.leases.as_mut().context("there is no cluster")?;
        let times = Times { ttl_ms: ttl_ms.into(), wait_ms: TTL_MS.into() };
        let token = calls::acquire(leases, lease, &[key], times).await?;
        let guard = RedisGuard::new(&key.parse::<Key>()?)?;
        Ok(Held::Leased { lease, guard, claim: Claim::exclusive(token)? })
    }

    async fn release(&mut self, held: Held, outcome: Outcome) -> Result<()> {
        match held {
            Held::Watched if outcome == Outcome::Gone => {
                redis::cmd("UNWATCH").exec_async(&mut self.redis).await?;
            }
            // EXEC has ended it.
            Held::Watched => {}
            Held::Locked { name, value } => {
                let deleted: bool = DELETE_IF_OWN.key(&name).arg(value).invoke_async(&mut self.redis).await?;
                ensure!(deleted, "{name} has expired: what it guarded may be wrong");
            }
            Held::Leased { lease, .. } => {
                let leases = self.leases.as_mut().context("there is no cluster")?;
                calls::release(leases, lease).await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, held: &Held, commands: &Pipeline) -> Result<Outcome> {
        Ok(self.run::<()>(held, commands).await?.map_or(Outcome::Refused, |()| Outcome::Done))
    }

    /// The answers to these commands; `None` where they were refused.
    async fn run<T: FromRedisValue>(&mut self, held: &Held, commands: &Pipeline) -> Result<Option<T>> {
        let Held::Leased { guard, claim, .. } = held else {
            return Ok(commands.query_async(&mut self.redis).await?);
        };
        let mut call = GUARDED.key(guard.number());
        call.arg(claim.token().0).arg(claim.fence().0);
        for command in commands.cmd_iter() {
            let words = command.args_iter().filter_map(|word| match word {
                Arg::Simple(word) => Some(word),
                _ => None,
            });
            let words: Vec<&[u8]> = words.collect();
            // A command's key is its first argument.
            call.key(words.get(1).copied()).arg(words.len()).arg(words);
        }
        let (accepted, answers): (bool, Value) = call.invoke_async(&mut self.redis).await?;
        Ok(if accepted { Some(redis::from_redis_value(answers)?) } else { None })
    }
}

/// What a buyer reads: the price, if the item is still there, and its own funds.
fn before(buyer: User, offer: Offer) -> Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("ZSCORE").arg("market:").arg(offer.member());
    commands.cmd("HGET").arg(users(buyer)).arg("funds");
    commands
}

/// What a buyer writes.
fn deal(buyer: User, offer: Offer) -> Pipeline {
    let Offer { item, seller, price } = offer;
    let mut commands = redis::pipe();
    commands.atomic();
    commands.cmd("HINCRBY").arg(users(seller)).arg("funds").arg(price);
    commands.cmd("HINCRBY").arg(users(buyer)).arg("funds").arg(-price);
    commands.cmd("SADD").arg(inventory(buyer)).arg(item);
    commands.cmd("ZREM").arg("market:").arg(offer.member());
    commands
}
