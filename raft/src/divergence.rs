//! Whether this node did the same as the others: the same entries must have had the same outcomes everywhere.
//!
//! Each node compares itself with the voters, and judges only itself. If a majority of them agree with each other and not with
//! it, it stops, whether it leads or not: what it would answer from then on is not what the cluster decided. Without such a
//! majority nobody can tell who is wrong; then there is an error in the log and a metric, and the operator decides.
//!
//! Every comparison covers all that this node remembers, so that a difference is not forgotten when the next entries agree. A
//! node with a shorter memory answers for fewer entries. If somebody differs, this node asks all of them again for each shorter
//! range: only sums over the same entries show who agrees with whom.
//!
//! It sees what entries did ([`witness`](crate::applied::witness)), not the table itself. A table that differs is found when
//! an entry has another outcome because of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use crate::applied::witness::Difference;
use crate::condemned;
use crate::consensus::NodeId;
use crate::measure::DIFFERING_NODES;
use crate::replica::Replica;
use crate::storage::identity::DataDir;

/// Pause between two comparisons.
const EVERY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(9) };
/// How much later than this node the others may apply what is compared.
const LATER: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };

/// This node is not like the others.
#[derive(Debug, thiserror::Error)]
#[error(
    "this node did not do the same as a majority of the voters, nodes {majority:?}, in the entries {first} to {last}: its state \
     is not that of the cluster, so it stops. Remove it from the cluster, and add it again with an empty data directory. If you know that the other nodes are wrong, \
     delete the file DIVERGED"
)]
struct Diverged {
    majority: BTreeSet<NodeId>,
    first: u64,
    last: u64,
}

/// Compares this node with the others until a majority of the voters agree, and not with it; then stops it, with the reason as
/// its `fault`.
pub(crate) async fn watch(replica: Arc<Replica>, dir: Arc<DataDir>, fault: watch::Sender<Option<String>>) {
    let mut comparison = Comparison::new(replica);
    loop {
        // At once, and also if nothing was applied: by connecting, the nodes learn which program the others are.
        if let Err(diverged) = comparison.run().await {
            return condemned::stop(diverged.to_string(), &dir, &fault).await;
        }
        sleep(EVERY).await;
    }
}

struct Comparison {
    replica: Arc<Replica>,
    /// The voters that differed from this node, by their incarnations: a data directory that was wrong stays wrong.
    differing: BTreeSet<(NodeId, Uuid)>,
}

impl Comparison {
    fn new(replica: Arc<Replica>) -> Self {
        DIFFERING_NODES.get().set(0.0);
        Self { replica, differing: BTreeSet::new() }
    }

    async fn run(&mut self) -> Result<(), Diverged> {
        let (from, upto) = self.range();
        sleep(LATER).await;
        let voters = self.replica.voters();
        let compared = self.compare(&voters, from, upto).await;
        let differ = compared.iter().filter(|(_, _, is_equal)| !is_equal);
        self.note(&voters, differ.clone().map(|(id, ..)| *id).collect(), upto);
        let begins: BTreeSet<u64> = differ.map(|(_, theirs, _)| theirs.after).collect();
        for from in begins {
            let compared = self.compare(&voters, from, upto).await;
            let mut agreeing = BTreeMap::<Difference, BTreeSet<NodeId>>::new();
            for (id, theirs, is_equal) in compared {
                if !is_equal {
                    agreeing.entry(theirs).or_default().insert(id);
                }
            }
            for (theirs, majority) in agreeing {
                if is_majority(&majority, &voters) {
                    return Err(Diverged { majority, first: theirs.after, last: upto - 1 });
                }
            }
        }
        Ok(())
    }

    /// The counts of entries between which this node can compare.
    fn range(&self) -> (u64, u64) {
        let witness = &self.replica.applied.lock().witness;
        (witness.comparable_from(), witness.applied())
    }

    /// Asks each other voter for its sum over the entries from `from` to `upto`, and compares it with the sum of this node. A voter with
    /// a shorter memory may begin later. Voters that have not applied the entries, or do not answer, are left out.
    async fn compare(
        &self,
        voters: &BTreeSet<NodeId>,
        from: u64,
        upto: u64,
    ) -> Vec<(NodeId, Difference, bool)> {
        let replica = &self.replica;
        let asked = voters.iter().filter(|id| **id != replica.id).map(async |id| {
            let theirs = replica.peers.difference(*id, from, upto).await?;
            let own = replica.applied.lock().witness.difference(theirs.after, upto)?;
            (own.after == theirs.after).then_some((*id, theirs, own == theirs))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Notes that `others` differ from this node.
    fn note(&mut self, voters: &BTreeSet<NodeId>, others: BTreeSet<NodeId>, upto: u64) {
        let members = self.replica.members();
        let incarnation = |id: &NodeId| Some((*id, members.get(id)?.incarnation));
        self.differing.retain(|known| voters.contains(&known.0) && incarnation(&known.0) == Some(*known));
        for id in others.iter().filter_map(incarnation) {
            if self.differing.insert(id) {
                tracing::error!(
                    node = id.0,
                    last = upto - 1,
                    "this node and another did not do the same in the entries up to the last: one of the states is wrong"
                );
            }
        }
        DIFFERING_NODES.get().set(self.differing.len() as f64);
    }
}

fn is_majority(some: &BTreeSet<NodeId>, voters: &BTreeSet<NodeId>) -> bool {
    2 * voters.intersection(some).count() > voters.len()
}

#[cfg(test)]
mod tests;
