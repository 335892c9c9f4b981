//! What is not well with a cluster, as the nodes that were asked see it.

use std::collections::BTreeMap;

use ringfence_client::ClusterStatus;

/// Sentences, of which each member has at most one of each kind.
#[derive(Default)]
pub(super) struct Troubles {
    members: BTreeMap<(u64, Kind), String>,
    others: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Silent,
    Refused,
    Snapshot,
}

impl Troubles {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.others.is_empty()
    }

    pub(super) fn add(&mut self, trouble: String) {
        self.others.push(trouble);
    }

    /// Adds what this node sees.
    pub(super) fn see(&mut self, status: &ClusterStatus) {
        let by = status.node_id;
        for (id, member) in &status.members {
            if let Some(time) = member.silence() {
                let told = format!("node {id} has not answered node {by} for {} s", time.as_secs());
                self.members.insert((*id, Kind::Silent), told);
            }
            if let Some(refused) = &member.refused {
                let told = format!("node {by} refuses node {id}: {refused}");
                self.members.insert((*id, Kind::Refused), told);
            }
            if let Some(failure) = &member.snapshot_failure {
                let told = format!("node {by} could not deliver a snapshot to node {id}: {failure}");
                self.members.insert((*id, Kind::Snapshot), told);
            }
        }
    }

    /// Adds what others tell, unless the like is told already.
    pub(super) fn append(&mut self, others: Self) {
        for (about, told) in others.members {
            self.members.entry(about).or_insert(told);
        }
        self.others.extend(others.others);
    }

    /// Whether there is something about this member.
    pub(super) fn are_about(&self, id: u64) -> bool {
        self.members.keys().any(|(about, _)| *about == id)
    }

    /// In the order of the members.
    pub(super) fn lines(&self) -> impl Iterator<Item = &String> {
        self.others.iter().chain(self.members.values())
    }
}
