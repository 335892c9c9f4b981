use uuid::Uuid;

use crate::connection::{Connection, is_slot_error};
use crate::marker::{Marker, read_marker};
use crate::topology::{MasterAt, discover};
use crate::{Settings, SettingsError};

/// Names scanned at once.
const PAGE: usize = 512;

/// Why nothing, or not everything, was removed.
#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    /// A setting is invalid.
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
    /// Some keys remain; the others were removed.
    #[error(
        "removed {removed} keys; {left} remain, in slots that are moving between masters, or left over from such a move: \
         try again when `redis-cli --cluster check` finds nothing to fix"
    )]
    SlotsMove {
        /// How many keys were removed.
        removed: u64,
        /// How many remain.
        left: u64,
    },
}

impl From<redis::RedisError> for PurgeError {
    fn from(error: redis::RedisError) -> Self {
        Self::Redis(error.to_string())
    }
}

/// Removes all that the dead cluster `cluster_id` has left in Redis under the prefix, and returns the number of keys.
/// Hashes do not name their cluster, so this refuses if a marker names another one. If the cluster is not dead after all,
/// it publishes everything again.
pub async fn purge(settings: Settings, cluster_id: Uuid) -> Result<u64, PurgeError> {
    let config = settings.check()?;
    let mut masters = Vec::new();
    for at in discover(&config).await? {
        let connection = Connection::open(&config, &at.address).await?;
        match read_marker(&mut connection.redis.clone(), &config.names.markers(&at.slots)).await? {
            Some(Marker { cluster, .. }) if cluster != cluster_id.to_string() => {
                return Err(PurgeError::OtherCluster { address: at.address.to_string(), cluster });
            }
            _ => masters.push((at, connection)),
        }
    }
    let (mut removed, mut left) = (0, 0);
    for (MasterAt { slots, .. }, connection) in masters {
        let (mut cursor, mut markers) = (0, Vec::new());
        loop {
            let (next, found) = connection.scan(&config.names.all_pattern(), cursor, PAGE).await?;
            let mut hashes = Vec::new();
            for name in found {
                match config.names.key(&name) {
                    Some(key) if config.names.is_in(&slots, &key) => hashes.push(name),
                    Some(_) => left += 1,
                    None if config.names.is_marker(&name) => markers.push(name),
                    None => {}
                }
            }
            let unserved = connection.remove(&hashes).await?;
            removed += hashes.len() as u64 - unserved;
            left += unserved;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        // Last, so that a cluster that is not dead notices. Moved slots leave more than one marker.
        for name in markers {
            let names = [String::from_utf8_lossy(&name).into_owned()];
            match read_marker(&mut connection.redis.clone(), &names).await {
                Ok(Some(marker)) if marker.cluster == cluster_id.to_string() => {
                    left += connection.remove(&[name]).await?;
                }
                Err(error) if !is_slot_error(&error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    if left > 0 { Err(PurgeError::SlotsMove { removed, left }) } else { Ok(removed) }
}
