use uuid::Uuid;

use crate::connection::{Connection, is_elsewhere};
use crate::marker::Marker;
use crate::topology::discover;
use crate::{Settings, SettingsError};

/// Names that are asked for at once.
const PAGE: usize = 512;

/// Why nothing, or not all, was removed.
#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    /// A setting will not do.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Redis could not be reached, or refused.
    #[error("Redis: {0}")]
    Redis(String),
    /// Nothing was removed: another cluster publishes there.
    #[error("the Redis at {address} belongs to cluster {cluster}: nothing was removed")]
    OtherCluster {
        /// The master.
        address: String,
        /// The cluster.
        cluster: String,
    },
    /// The rest was removed, and is counted too.
    #[error(
        "removed {removed} keys; {left} are in slots that are moving between masters, or are left of such a move: try \
         again when `redis-cli --cluster check` finds nothing to fix"
    )]
    SlotsMove {
        /// How many keys were removed.
        removed: u64,
        /// How many were left.
        left: u64,
    },
}

impl From<redis::RedisError> for PurgeError {
    fn from(error: redis::RedisError) -> Self {
        Self::Redis(error.to_string())
    }
}

/// Removes all that the dead cluster `cluster_id` has left in Redis under the prefix, and tells how many keys those were.
/// Hashes do not say whose they are: so this refuses where a marker names another cluster. One that is not dead after
/// all publishes everything again.
pub async fn purge(settings: Settings, cluster_id: Uuid) -> Result<u64, PurgeError> {
    let settings = settings.check()?;
    let mut masters = Vec::new();
    for at in discover(&settings).await? {
        let connection =
            Connection::open(&settings.client(&at.host, at.port)?, &settings.names, settings.retention)
                .await?;
        match connection.marker(&settings.names.markers(&at.slots)).await? {
            Some(Marker { cluster, .. }) if cluster != cluster_id.to_string() => {
                return Err(PurgeError::OtherCluster { address: at.address(), cluster });
            }
            _ => masters.push((at, connection)),
        }
    }
    let (mut removed, mut left) = (0, 0);
    for (at, connection) in masters {
        let (mut cursor, mut markers) = (0, Vec::new());
        loop {
            let (next, names) = connection.scan(&settings.names.everything(), cursor, PAGE).await?;
            let mut hashes = Vec::new();
            for name in names {
                if settings.names.is_marker(&name) {
                    markers.push(name);
                } else if settings.names.key(&name).is_some_and(|key| settings.names.is_in(&at.slots, &key)) {
                    hashes.push(name);
                } else {
                    left += u64::from(settings.names.key(&name).is_some());
                }
            }
            let elsewhere = connection.remove(&hashes).await?;
            removed += hashes.len() as u64 - elsewhere;
            left += elsewhere;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        // Last: a cluster that is not dead then notices. There are more than one where slots have moved.
        for name in markers {
            let marker = connection.marker(&[String::from_utf8_lossy(&name).into_owned()]).await;
            match marker {
                Ok(Some(marker)) if marker.cluster == cluster_id.to_string() => {
                    left += connection.remove(&[name]).await?;
                }
                Err(error) if !is_elsewhere(&error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    if left > 0 { Err(PurgeError::SlotsMove { removed, left }) } else { Ok(removed) }
}
