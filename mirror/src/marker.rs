//! The marker of a master, as others than its owner read it.

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use ringfence_wire::Revision;

use crate::connection::is_elsewhere;
use crate::hash::number;

/// What a marker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// The cluster's id, as it stands there.
    pub(crate) cluster: String,
    /// How far it has come, or where it started if it has not said more.
    pub(crate) reached: Revision,
}

/// The marker under the first of these names whose slot is served. `None` where nothing, or no marker, stands.
pub(crate) async fn read_marker(
    redis: &mut MultiplexedConnection,
    names: &[String],
) -> Result<Option<Marker>, RedisError> {
    let mut moves = None;
    for name in names {
        let mut ask = redis::cmd("HMGET");
        ask.arg(name).arg(&["cluster", "first_revision", "revision"]);
        type Fields = (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>);
        let (cluster, first, revision): Fields = match ask.query_async(redis).await {
            Err(error) if is_elsewhere(&error) => {
                moves = Some(error);
                continue;
            }
            // No marker: the next publisher replaces it.
            Err(error) if error.code() == Some("WRONGTYPE") => return Ok(None),
            answer => answer?,
        };
        let reached = [first, revision].into_iter().flatten().filter_map(|text| number(&text)).max();
        let marker = cluster.zip(reached);
        return Ok(marker.map(|(cluster, reached)| Marker { cluster, reached: Revision(reached) }));
    }
    moves.map_or(Ok(None), Err)
}
