//! Which masters there are.

use std::collections::BTreeMap;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

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

/// Asks for the masters, as they are now. Of several to ask the first that answers is believed.
pub(crate) async fn discover(settings: &Checked) -> Result<Vec<MasterAt>, RedisError> {
    let hosts = &settings.url.hosts;
    let mut last = RedisError::from((redis::ErrorKind::InvalidClientConfig, "there is nobody to ask"));
    for (host, port) in hosts {
        let answer = match &settings.url.kind {
            Kind::Single => {
                return Ok(vec![MasterAt { host: host.clone(), port: *port, slots: Slots::all() }]);
            }
            Kind::Sentinel(name) => ask_sentinel(settings, host, *port, name).await,
            Kind::Cluster => ask_cluster(settings, host, *port).await,
        };
        match answer {
            Ok(masters) => return Ok(masters),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn ask_sentinel(
    settings: &Checked,
    host: &str,
    port: u16,
    name: &str,
) -> Result<Vec<MasterAt>, RedisError> {
    let mut sentinel = connect(&settings.sentinel(host, port)?).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    match ask.query_async::<Option<(String, u16)>>(&mut sentinel).await? {
        Some((host, port)) => Ok(vec![MasterAt { host, port, slots: Slots::all() }]),
        None => {
            Err((redis::ErrorKind::MasterNameNotFoundBySentinel, "the Sentinel knows no such master").into())
        }
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
        return Err(
            (redis::ErrorKind::InvalidClientConfig, "this server knows of no slots of a cluster").into()
        );
    }
    let master = |((host, port), ranges)| MasterAt { host, port, slots: Slots::new(ranges) };
    Ok(masters.into_iter().map(master).collect())
}

/// Ranges of slots with the address of their master.
async fn cluster_slots(
    node: &mut MultiplexedConnection,
) -> Result<Vec<(u16, u16, Option<String>, u16)>, RedisError> {
    let answer: Vec<Vec<redis::Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(node).await?;
    let mut ranges = Vec::new();
    for entry in answer {
        let mut parts = entry.into_iter();
        let mut next = || parts.next().unwrap_or_default();
        let first = redis::from_redis_value(next())?;
        let last = redis::from_redis_value(next())?;
        // Address, port, and more than we need.
        let owner: Vec<redis::Value> = redis::from_redis_value(next())?;
        let mut owner = owner.into_iter();
        let host = redis::from_redis_value(owner.next().unwrap_or_default())?;
        let port = redis::from_redis_value(owner.next().unwrap_or_default())?;
        ranges.push((first, last, host, port));
    }
    Ok(ranges)
}
