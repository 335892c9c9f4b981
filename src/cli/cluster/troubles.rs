//! What is not well with a cluster, as the nodes that were asked see it.

use std::collections::BTreeMap;

use ringfence_client::{ClusterStatus, MemberStatus};

use super::certificates;

/// Sentences, of which each member has at most one of each kind.
#[derive(Default)]
pub(super) struct Troubles {
    members: BTreeMap<(u64, Kind), String>,
    others: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Silent,
    CannotCall,
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
        self.others.extend(certificates::troubles(status));
        for (id, member) in &status.members {
            self.see_member(by, *id, member);
        }
    }

    fn see_member(&mut self, by: u64, id: u64, member: &MemberStatus) {
        if let Some(time) = member.silence() {
            let told = format!("node {id} has not answered node {by} for {} s", time.as_secs());
            self.members.insert((id, Kind::Silent), told);
        }
        if member.cannot_call {
            let told = format!(
                "node {id} cannot open or use a connection to node {by}, which leads: look at the firewall for its peer port"
            );
            self.members.insert((id, Kind::CannotCall), told);
        }
        if let Some(refused) = &member.refused {
            let told = format!("node {by} refuses node {id}: {refused}");
            self.members.insert((id, Kind::Refused), told);
        }
        if let Some(failure) = &member.snapshot_failure {
            let told = format!("node {by} could not deliver a snapshot to node {id}: {failure}");
            self.members.insert((id, Kind::Snapshot), told);
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

    /// Whether something about this member was not `before` a change. Silence is not: it takes time to tell, and what lasts may have
    /// begun before the change.
    pub(super) fn are_new(&self, id: u64, before: &Self) -> bool {
        let mut about =
            self.members.iter().filter(|((about, kind), _)| *about == id && *kind != Kind::Silent);
        about.any(|(about, told)| before.members.get(about) != Some(told))
    }

    /// In the order of the members.
    pub(super) fn lines(&self) -> impl Iterator<Item = &String> {
        self.others.iter().chain(self.members.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(silent_ms: Option<u64>, refused: Option<&str>, failure: Option<&str>) -> Troubles {
        let member: MemberStatus = serde_json::from_value(serde_json::json!({
            "voter": true, "peer": "b:2", "url": null, "lag_entries": null, "silent_ms": silent_ms, "refused": refused,
            "snapshot_failure": failure,
        }))
        .unwrap();
        let mut troubles = Troubles::default();
        troubles.see_member(1, 2, &member);
        troubles
    }

    #[test]
    fn a_member_that_cannot_call_the_leader_is_a_trouble() {
        let member = |cannot_call: bool| -> MemberStatus {
            let member = serde_json::json!({ "voter": true, "peer": "b:2", "cannot_call": cannot_call });
            serde_json::from_value(member).unwrap()
        };
        let lines = |cannot_call| {
            let mut troubles = Troubles::default();
            troubles.see_member(1, 2, &member(cannot_call));
            troubles.lines().cloned().collect::<Vec<_>>()
        };
        assert!(lines(false).is_empty());
        assert!(lines(true)[0].starts_with("node 2 cannot open or use a connection to node 1, which leads"));
    }

    /// `cluster add` of a member that had moved told at once for how long it had been away.
    #[test]
    fn what_was_so_before_a_change_is_not_new() {
        let before = told(Some(90_000), Some("it has moved"), None);
        let is_new = |now: Troubles| (now.are_about(2), now.are_new(2, &before));
        assert_eq!(is_new(told(Some(91_000), Some("it has moved"), None)), (true, false));
        assert_eq!(is_new(told(None, None, None)), (false, false));
        assert_eq!(is_new(told(Some(91_000), Some("it is a copy"), None)), (true, true));
        assert_eq!(is_new(told(None, None, Some("no room"))), (true, true));
        assert!(!told(None, Some("it is a copy"), None).are_new(3, &before));
    }
}
