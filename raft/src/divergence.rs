//! Whether this node did the same as the others: the same entries must have had the same outcomes everywhere.
//!
//! Each node compares itself with the voters, and judges only itself. If it differs from a majority of them, it stops, whether
//! it leads or not: what it would answer from then on is not what the cluster decided. Without such a majority nobody can tell
//! who is wrong; then there is an error in the log and a metric, and the operator decides.
//!
//! It sees what entries did ([`witness`](crate::applied::witness)), not the table itself. A table that differs is found when
//! an entry has another outcome because of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use metrics::{Gauge, gauge};
use tokio::time::sleep;

use crate::consensus::NodeId;
use crate::replica::Replica;

/// Pause between two comparisons.
const EVERY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(9) };
/// How much later than this node the others may apply what is compared.
const LATER: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };

/// This node is not like the others.
#[derive(Debug, thiserror::Error)]
#[error(
    "this node did not do the same as a majority of the voters, nodes {others:?}, in the entries {first} to {last}: its state \
     is not that of the cluster, so it stops. Remove it from the cluster, and add it again with an empty data directory"
)]
pub(crate) struct Diverged {
    others: BTreeSet<NodeId>,
    first: u64,
    last: u64,
}

/// Compares this node with the others until it differs from a majority of the voters.
pub(crate) async fn watch(replica: Arc<Replica>) -> Diverged {
    let mut comparison =
        Comparison { replica, after: 0, differing: gauge!("ringfence_raft_differing_nodes") };
    comparison.differing.set(0.0);
    loop {
        sleep(EVERY).await;
        if let Err(diverged) = comparison.run().await {
            return diverged;
        }
    }
}

struct Comparison {
    replica: Arc<Replica>,
    /// How many entries a majority is known to agree on.
    after: u64,
    differing: Gauge,
}

impl Comparison {
    async fn run(&mut self) -> Result<(), Diverged> {
        let upto = self.replica.applied.lock().witness.applied();
        // Also if nothing was applied since: by connecting, the nodes learn which program the others are.
        sleep(LATER).await;
        let voters = self.replica.voters();
        let [equal, others] = self.compare(&voters, upto).await;
        self.differing.set(others.len() as f64);
        if is_majority(&others, &voters) {
            return Err(Diverged { others, first: self.after, last: upto.saturating_sub(1) });
        }
        if !others.is_empty() {
            tracing::error!(
                ?others,
                first = self.after,
                last = upto.saturating_sub(1),
                "these nodes did not do the same in these entries as this node: at least one of the states is wrong"
            );
        }
        if is_majority(&equal, &voters) {
            self.after = upto;
        }
        Ok(())
    }

    /// The voters that did the same up to the first `upto` entries, this node included, and those that did not. Those that did
    /// not apply them yet, or do not answer, are neither.
    async fn compare(&self, voters: &BTreeSet<NodeId>, upto: u64) -> [BTreeSet<NodeId>; 2] {
        let replica = &self.replica;
        let asked = voters.iter().filter(|id| **id != replica.id).map(async |id| {
            let theirs = replica.peers.difference(*id, self.after, upto).await?;
            let own = replica.applied.lock().witness.difference(theirs.after, upto)?;
            (own.after == theirs.after).then_some((*id, own == theirs))
        });
        let mut compared: Vec<(NodeId, bool)> = join_all(asked).await.into_iter().flatten().collect();
        compared.push((replica.id, true));
        [true, false].map(|equal| compared.iter().filter(|(_, is)| *is == equal).map(|(id, _)| *id).collect())
    }
}

fn is_majority(some: &BTreeSet<NodeId>, voters: &BTreeSet<NodeId>) -> bool {
    2 * voters.intersection(some).count() > voters.len()
}

#[cfg(test)]
mod tests;
