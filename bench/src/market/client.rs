//! A seller or a buyer: what the book has them do, in each way.
//!
//! Both read, decide and write. That nobody writes in between is seen to by `WATCH` (the write is refused), by a lock, or
//! by a lease, whose token Redis compares in one step with each read and write. The commands are the same in all ways, and
//! those of one step go in one trip.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Arg, AsyncConnectionConfig, FromRedisValue, Pipeline, Script, Value};
use ringfence_guard::Claim;
use ringfence_guard::redis::RedisGuard;
use ringfence_wire::{Key, LeaseId};
use tokio::time::sleep;
use uuid::Uuid;

use crate::calls::{self, Wish};
use crate::http::Connection;
use crate::market::books::{Item, User, inventory, member, users};
use crate::service::redis as redis_lock;

/// For how long locks and leases are taken, and how long a lease may be waited for.
const TTL_MS: u32 = 60_000;
/// The shortest there is: for those who are to outlive it.
const SHORT_MS: u32 = 100;
/// A server that stalls for its disk is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// After how long a lock that was held is asked for again, as in the book.
const RETRY: Duration = Duration::from_millis(1);
/// A buyer takes one of so many.
const CHEAPEST: usize = 100;
static DELETE_IF_OWN: LazyLock<Script> = LazyLock::new(|| Script::new(redis_lock::DELETE_IF_OWN));
static GUARDED: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("guarded.lua")));

/// What keeps clients out of each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing does; a conflict is noticed by `EXEC`.
    Watch,
    /// A lock in the Redis that has the data.
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

/// One with connections of its own.
pub(crate) struct Client {
    way: Way,
    redis: MultiplexedConnection,
    leases: Option<Connection>,
}

/// What is on the market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) item: Item,
    pub(crate) seller: User,
    pub(crate) price: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The item is not there any more.
    Gone,
    /// By `EXEC`, since another client wrote what was watched; or by the guard, since the token is stale.
    Refused,
}

/// What a client has in hand from before it reads until it has written.
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
            Some(leader) => Some(Connection::open(leader).await?),
            None => None,
        };
        Ok(Client { way: self.way, redis: self.redis().await?, leases })
    }
}

impl Client {
    /// One of the cheapest items; where there are few it may find none.
    pub(crate) async fn look(&mut self) -> Result<Option<Offer>> {
        let place = fastrand::usize(..CHEAPEST);
        let mut command = redis::cmd("ZRANGE");
        command.arg("market:").arg(place).arg(place).arg("WITHSCORES");
        let found: Vec<(String, i64)> = command.query_async(&mut self.redis).await?;
        found.first().map(|(name, price)| offer(name, *price)).transpose()
    }

    /// An item goes from its seller's inventory to the market.
    pub(crate) async fn list(&mut self, Offer { item, seller, price }: Offer) -> Result<Outcome> {
        let held = self.acquire(item, TTL_MS, &[&inventory(seller)]).await?;
        let mut read = redis::pipe();
        read.cmd("SISMEMBER").arg(inventory(seller)).arg(item);
        let mut write = redis::pipe();
        write.atomic();
        write.cmd("ZADD").arg("market:").arg(price).arg(member(item, seller));
        write.cmd("SREM").arg(inventory(seller)).arg(item);
        let outcome = match self.run(&held, &read).await? {
            None => Outcome::Refused,
            Some((false,)) => Outcome::Gone,
            Some((true,)) => self.write(&held, &write).await?,
        };
        self.release(held, outcome).await?;
        Ok(outcome)
    }

    /// An item goes from the market to the buyer's inventory, and its price to the seller.
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

    /// A buyer that pauses between its reads and its writes, until `next` has taken over from it: that one waits for the
    /// lease, and its grant proves that this one's has ended. Gives what came of the purchase by `next`. It is an error if
    /// the late write is not refused.
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
        ensure!(late == Outcome::Refused, "item {}: a stale buyer has written: {late:?}", offer.item);
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
        let wish = Wish { ttl_ms: ttl_ms.into(), wait_ms: TTL_MS.into() };
        let token = calls::acquire(leases, lease, &[key], wish).await?;
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
                ensure!(deleted, "{name} has run out: what it guarded may be wrong");
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

    /// What these commands answered; nothing where they were refused.
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
            // What a command uses is its first argument.
            call.key(words.get(1).copied()).arg(words.len()).arg(words);
        }
        let (accepted, answers): (bool, Value) = call.invoke_async(&mut self.redis).await?;
        Ok(if accepted { Some(redis::from_redis_value(answers)?) } else { None })
    }
}

/// What a buyer reads: the price, if it is still there, and its own funds.
fn before(buyer: User, offer: Offer) -> Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("ZSCORE").arg("market:").arg(member(offer.item, offer.seller));
    commands.cmd("HGET").arg(users(buyer)).arg("funds");
    commands
}

/// What a buyer writes.
fn deal(buyer: User, Offer { item, seller, price }: Offer) -> Pipeline {
    let mut commands = redis::pipe();
    commands.atomic();
    commands.cmd("HINCRBY").arg(users(seller)).arg("funds").arg(price);
    commands.cmd("HINCRBY").arg(users(buyer)).arg("funds").arg(-price);
    commands.cmd("SADD").arg(inventory(buyer)).arg(item);
    commands.cmd("ZREM").arg("market:").arg(member(item, seller));
    commands
}

/// The offer by its name on the market.
fn offer(name: &str, price: i64) -> Result<Offer> {
    let Some((item, seller)) = name.split_once('.') else { bail!("{name} on the market is no item") };
    Ok(Offer { item: item.parse()?, seller: seller.parse()?, price })
}
