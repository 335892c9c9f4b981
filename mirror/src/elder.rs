//! What a cluster that is about to be founded finds in Redis of earlier ones.

use futures_util::future::join_all;
use redis::RedisError;
use ringfence_wire::Revision;

use crate::Mirror;
use crate::connection::connect;
use crate::marker::{Marker, read_marker};
use crate::settings::Checked;
use crate::topology::{MasterAt, discover};

/// A cluster whose marker stands on a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elder {
    /// The master.
    pub address: String,
    /// The cluster's id, as it stands there.
    pub cluster: String,
    /// The revision that it came to, or started at where it has not said more. What it changed in its last half second is
    /// not in it.
    pub reached: Revision,
}

impl Mirror {
    /// Of the clusters whose markers stand in Redis the one that came furthest. Masters that cannot be asked within about a
    /// second are left out, which is told in the log: no cluster waits for Redis.
    pub async fn elder(&self) -> Option<Elder> {
        let settings = self.settings();
        let masters = match discover(settings).await {
            Ok(masters) => masters,
            Err(error) => {
                cannot_ask(&error);
                return None;
            }
        };
        let asked = masters.iter().map(|at| async move {
            marked(settings, at).await.unwrap_or_else(|error| {
                cannot_ask(&error);
                None
            })
        });
        join_all(asked).await.into_iter().flatten().max_by_key(|elder| elder.reached)
    }
}

fn cannot_ask(error: &RedisError) {
    tracing::warn!(%error, "cannot ask Redis how far an earlier cluster has come; this one is founded all the same");
}

async fn marked(settings: &Checked, at: &MasterAt) -> Result<Option<Elder>, RedisError> {
    let mut redis = connect(&settings.client(&at.host, at.port)?).await?;
    let marker = read_marker(&mut redis, &settings.names.markers(&at.slots)).await?;
    Ok(marker.map(|Marker { cluster, reached }| Elder { address: at.address(), cluster, reached }))
}
