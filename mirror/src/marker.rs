//! Reads the markers of earlier clusters, before a new one is founded or a lost one purged.

use futures_util::future::join_all;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use ringfence_wire::Revision;

use crate::connection::is_slot_error;
use crate::hash::number;
use crate::settings::Config;
use crate::topology::discover;

/// A cluster's marker on a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The cluster's id, as it stands there.
    pub cluster: String,
    /// The revision that the cluster had reached, or started at if it has not said more. It lacks changes of the
    /// cluster's last half second.
    pub reached: Revision,
}

/// Reads the marker under the first of these names whose slot is served. `None` if there is none.
pub(crate) async fn read_marker(
    redis: &mut MultiplexedConnection,
    names: &[String],
) -> Result<Option<Marker>, RedisError> {
    let mut unserved = None;
    for name in names {
        let mut command = redis::cmd("HMGET");
        command.arg(name).arg(&["cluster", "first_revision", "revision"]);
        type Fields = (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>);
        let (cluster, first, revision): Fields = match command.query_async(redis).await {
            Err(error) if is_slot_error(&error) => {
                unserved = Some(error);
                continue;
            }
            // Not a marker: the next publisher replaces it.
            Err(error) if error.code() == Some("WRONGTYPE") => return Ok(None),
            answer => answer?,
        };
        let reached = [first, revision].into_iter().flatten().filter_map(|text| number(&text)).max();
        let marker = cluster.zip(reached);
        return Ok(marker.map(|(cluster, reached)| Marker { cluster, reached: Revision(reached) }));
    }
    unserved.map_or(Ok(None), Err)
}

/// The marker with the highest revision, and the address of its master. Masters that do not answer within about a second
/// are logged and skipped: no new cluster waits for Redis.
pub(crate) async fn furthest_marker(config: &Config) -> Option<(String, Marker)> {
    let log = |error: RedisError| {
        tracing::warn!(%error, "cannot read from Redis which revision an earlier cluster reached; founding this cluster without that check");
    };
    let masters = discover(config).await.map_err(log).ok()?;
    let markers = masters.iter().map(async |at| {
        let mut redis = config.connect(&at.address).await?;
        read_marker(&mut redis, &config.names.markers(&at.slots)).await
    });
    let found = masters
        .iter()
        .zip(join_all(markers).await)
        .filter_map(|(at, marker)| Some((at.address.to_string(), marker.map_err(log).ok().flatten()?)));
    found.max_by_key(|(_, marker)| marker.reached)
}
