//! Which masters there are.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::connection::connect;
use crate::names::Slots;
use crate::redis_url::Kind;
use crate::settings::Checked;

/// A master: where it is, and which slots it has (all, outside a Redis Cluster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterAt {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) slots: Slots,
}

impl MasterAt {
    pub(crate) fn address(&self) -> String {
        address(&self.host, self.port)
    }
}

pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Asks for the masters, as they are now.
pub(crate) async fn discover(settings: &Checked) -> Result<Vec<MasterAt>, RedisError> {
    let hosts = &settings.url.hosts;
    let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "there is nobody to ask"));
    for (host, port) in hosts {
        let answer = match &settings.url.kind {
            Kind::Single => return Ok(vec![the_master(host.clone(), *port)]),
            Kind::Sentinel(name) => return ask_sentinels(settings, name).await,
            Kind::Cluster => ask_cluster(settings, host, *port).await,
        };
        match answer {
            Ok(masters) => return Ok(masters),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn the_master(host: String, port: u16) -> MasterAt {
    MasterAt { host, port, slots: Slots::all() }
}

/// Of the addresses that Sentinels name, the one that most of them name is believed, if the server there says that it is
/// a master: a Sentinel that was cut off, or was told wrong, may name a replica for ever.
async fn ask_sentinels(settings: &Checked, name: &str) -> Result<Vec<MasterAt>, RedisError> {
    let hosts = &settings.url.hosts;
    let mut error = RedisError::from((ErrorKind::InvalidClientConfig, "there is no Sentinel to ask"));
    let mut asked: FuturesUnordered<_> =
        hosts.iter().map(|(host, port)| ask_sentinel(settings, host, *port, name)).collect();
    let mut named: Vec<((String, u16), usize)> = Vec::new();
    // Those that are gone are waited for only as long as the others do not agree.
    while named.iter().all(|(_, votes)| 2 * votes <= hosts.len())
        && let Some(answer) = asked.next().await
    {
        match answer {
            Ok(address) => match named.iter_mut().find(|(known, _)| *known == address) {
                Some((_, votes)) => *votes += 1,
                None => named.push((address, 1)),
            },
            Err(failed) => error = failed,
        }
    }
    named.sort_by_key(|(_, votes)| Reverse(*votes));
    let mut unreached = None;
    for ((host, port), _) in named {
        match is_master(settings, &host, port).await {
            Ok(true) => return Ok(vec![the_master(host, port)]),
            Ok(false) => {
                let replica = address(&host, port);
                error =
                    (ErrorKind::InvalidClientConfig, "Sentinel names a server that is a replica", replica)
                        .into();
            }
            // Publishing there will find and report what is wrong.
            Err(_) => unreached = unreached.or(Some((host, port))),
        }
    }
    unreached.map(|(host, port)| vec![the_master(host, port)]).ok_or(error)
}

async fn ask_sentinel(
    settings: &Checked,
    host: &str,
    port: u16,
    name: &str,
) -> Result<(String, u16), RedisError> {
    let mut sentinel = connect(&settings.sentinel(host, port)?).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let address = ask.query_async::<Option<(String, u16)>>(&mut sentinel).await?;
    address
        .ok_or_else(|| (ErrorKind::MasterNameNotFoundBySentinel, "the Sentinel knows no such master").into())
}

async fn is_master(settings: &Checked, host: &str, port: u16) -> Result<bool, RedisError> {
    let mut server = connect(&settings.client(host, port)?).await?;
    match redis::cmd("ROLE").query_async::<Vec<Value>>(&mut server).await {
        Ok(role) => Ok(role.first().is_some_and(|role| *role == Value::BulkString(b"master".to_vec()))),
        // It may not be asked: then Sentinel is believed.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(true),
        Err(error) => Err(error),
    }
}

async fn ask_cluster(settings: &Checked, host: &str, port: u16) -> Result<Vec<MasterAt>, RedisError> {
    let mut node = connect(&settings.client(host, port)?).await?;
    let slots = cluster_slots(&mut node).await?;
    let mut masters: BTreeMap<(String, u16), Vec<(u16, u16)>> = BTreeMap::new();
    for (first, last, owner, owner_port) in slots {
        // A node that does not know its own address yet leaves it empty.
        let at = (owner.filter(|owner| !owner.is_empty()).unwrap_or_else(|| host.to_owned()), owner_port);
        masters.entry(at).or_default().push((first, last));
    }
    if masters.is_empty() {
        return Err((ErrorKind::InvalidClientConfig, "this server knows of no slots of a cluster").into());
    }
    let master = |((host, port), ranges)| MasterAt { host, port, slots: Slots::new(ranges) };
    Ok(masters.into_iter().map(master).collect())
}

/// Ranges of slots with the address of their master.
async fn cluster_slots(
    node: &mut MultiplexedConnection,
) -> Result<Vec<(u16, u16, Option<String>, u16)>, RedisError> {
    let answer: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(node).await?;
    let mut ranges = Vec::new();
    for entry in answer {
        let mut parts = entry.into_iter();
        let mut next = || parts.next().unwrap_or_default();
        let first = redis::from_redis_value(next())?;
        let last = redis::from_redis_value(next())?;
        // Address, port, and more than we need.
        let owner: Vec<Value> = redis::from_redis_value(next())?;
        let mut owner = owner.into_iter();
        let host = redis::from_redis_value(owner.next().unwrap_or_default())?;
        let port = redis::from_redis_value(owner.next().unwrap_or_default())?;
        ranges.push((first, last, host, port));
    }
    Ok(ranges)
}
