//! Finds the masters of a Redis.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value, from_redis_value};

use crate::names::Slots;
use crate::redis_url::{Address, Kind};
use crate::settings::Config;

/// A master and its slots: all, outside a Redis Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterAt {
    pub(crate) address: Address,
    pub(crate) slots: Slots,
}

/// The current masters.
pub(crate) async fn discover(config: &Config) -> Result<Vec<MasterAt>, RedisError> {
    let hosts = &config.url.hosts;
    let only_master = |address| vec![MasterAt { address, slots: Slots::all() }];
    let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "the URL names no host"));
    match &config.url.kind {
        Kind::Single => return hosts.first().cloned().map(only_master).ok_or(last),
        Kind::Sentinel(name) => return ask_sentinels(config, name).await.map(only_master),
        Kind::Cluster => {}
    }
    for node in hosts {
        match ask_cluster(config, node).await {
            Ok(masters) => return Ok(masters),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The address that most Sentinels name, if the server there says that it is a master: a Sentinel that was cut off or
/// misled may name a replica for ever.
async fn ask_sentinels(config: &Config, name: &str) -> Result<Address, RedisError> {
    let hosts = &config.url.hosts;
    let mut error = RedisError::from((ErrorKind::InvalidClientConfig, "the URL names no Sentinel"));
    let mut answers: FuturesUnordered<_> =
        hosts.iter().map(|host| ask_sentinel(config, host, name)).collect();
    let mut votes: BTreeMap<Address, usize> = BTreeMap::new();
    // Waits for Sentinels that do not answer only until the others are a majority.
    while votes.values().all(|count| 2 * count <= hosts.len())
        && let Some(answer) = answers.next().await
    {
        match answer {
            Ok(address) => *votes.entry(address).or_default() += 1,
            Err(failed) => error = failed,
        }
    }
    let mut votes: Vec<_> = votes.into_iter().collect();
    votes.sort_by_key(|(_, count)| Reverse(*count));
    let mut unreachable = None;
    for (address, _) in votes {
        match is_master(config, &address).await {
            Ok(true) => return Ok(address),
            Ok(false) => {
                let why = "Sentinel names a server that is a replica";
                error = (ErrorKind::InvalidClientConfig, why, address.to_string()).into();
            }
            // Publishing there will report the cause.
            Err(_) => unreachable = unreachable.or(Some(address)),
        }
    }
    unreachable.ok_or(error)
}

async fn ask_sentinel(config: &Config, host: &Address, name: &str) -> Result<Address, RedisError> {
    let mut sentinel = config.connect_sentinel(host).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let Some((host, port)) = command.query_async::<Option<(String, u16)>>(&mut sentinel).await? else {
        return Err(
            (ErrorKind::MasterNameNotFoundBySentinel, "the Sentinel does not know this master").into()
        );
    };
    Ok(Address { host, port })
}

async fn is_master(config: &Config, address: &Address) -> Result<bool, RedisError> {
    let mut server = config.connect(address).await?;
    match redis::cmd("ROLE").query_async::<Vec<Value>>(&mut server).await {
        Ok(role) => Ok(role.first().is_some_and(|role| *role == Value::BulkString(b"master".to_vec()))),
        // Without the right to ask, believe Sentinel.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(true),
        Err(error) => Err(error),
    }
}

async fn ask_cluster(config: &Config, node: &Address) -> Result<Vec<MasterAt>, RedisError> {
    let mut connection = config.connect(node).await?;
    let answer: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
    let mut masters: BTreeMap<Address, Vec<(u16, u16)>> = BTreeMap::new();
    for range in answer {
        // First slot, last slot, master, and replicas, which do not matter here.
        let mut parts = range.into_iter();
        let mut part = || parts.next().unwrap_or_default();
        let (first, last) = (from_redis_value(part())?, from_redis_value(part())?);
        // Address, port, and more.
        let mut parts = from_redis_value::<Vec<Value>>(part())?.into_iter();
        let mut part = || parts.next().unwrap_or_default();
        let (host, port): (Option<String>, _) = (from_redis_value(part())?, from_redis_value(part())?);
        // A node that does not know its own address yet leaves it empty.
        let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| node.host.clone());
        masters.entry(Address { host, port }).or_default().push((first, last));
    }
    if masters.is_empty() {
        return Err(
            (ErrorKind::InvalidClientConfig, "this server reports no slots of a Redis Cluster").into()
        );
    }
    let master = |(address, ranges)| MasterAt { address, slots: Slots::new(ranges) };
    Ok(masters.into_iter().map(master).collect())
}
