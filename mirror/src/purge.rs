use uuid::Uuid;

use crate::connection::Connection;
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
        if let Some(marker) = settings.names.marker(&at.slots) {
            match connection.marked_by(&marker).await? {
                Some(cluster) if cluster != cluster_id.to_string() => {
                    return Err(PurgeError::OtherCluster { address: at.address(), cluster });
                }
                _ => masters.push((connection, marker)),
            }
        }
    }
    let mut removed = 0;
    for (connection, marker) in masters {
        let mut cursor = 0;
        loop {
            let (next, names) = connection.scan(cursor, PAGE).await?;
            let ours: Vec<_> = names.into_iter().filter(|name| settings.names.key(name).is_some()).collect();
            connection.remove(&ours).await?;
            removed += ours.len() as u64;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        // Last: a cluster that is not dead then notices.
        connection.remove(&[marker.into_bytes()]).await?;
    }
    Ok(removed)
}
