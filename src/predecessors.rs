//! What a new cluster must know about earlier ones: guards remember their tokens, so it must start above them.

use std::path::PathBuf;
use std::pin::Pin;

use ringfence_mirror::{Marker, Mirror};
use ringfence_raft::Elders;
use ringfence_wire::{Backup, Revision};

/// An earlier cluster may have made this many more changes than a source knows: 2^45 are more than a year of a million per second.
const MARGIN: u64 = 1 << 45;

/// Sources that may know an earlier cluster.
pub(crate) struct Predecessors {
    /// The backup of the cluster that is replaced, and its file.
    pub(crate) restored: Option<(Backup, PathBuf)>,
    /// A cluster leaves a marker in its mirror.
    pub(crate) mirror: Option<Mirror>,
}

impl Elders for Predecessors {
    fn objection(
        &self,
        first_revision: Revision,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async move {
            if let Some((Backup { cluster_id, revision, .. }, path)) = &self.restored
                && *revision >= first_revision
            {
                return Some(format!(
                    "its first revision would be {first_revision}, but cluster {cluster_id} was at {revision} when {} \
                     was saved: guards that know its tokens would reject the new ones. Correct the clock of this \
                     machine, or start all nodes with --first-revision={}",
                    path.display(),
                    above(*revision)
                ));
            }
            let found = self.mirror.as_ref()?.furthest_marker().await;
            let (address, Marker { cluster, reached }) =
                found.filter(|(_, marker)| marker.reached >= first_revision)?;
            Some(format!(
                "its first revision would be {first_revision}, but the Redis at {address} has the marker of cluster \
                 {cluster}, which reached {reached}: guards that know its tokens would reject the new ones. Start all \
                 nodes with --first-revision={}, and with another --mirror-prefix if that cluster is still running. If \
                 nothing that it guarded exists any more, run `ringfence mirror purge --cluster {cluster}`",
                above(reached)
            ))
        })
    }
}

fn above(revision: Revision) -> u64 {
    revision.0.saturating_add(MARGIN)
}
