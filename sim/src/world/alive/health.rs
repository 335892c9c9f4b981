//! Since when nodes, and the paths between them, are well.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_raft::NodeId;

use super::super::World;
use super::super::happen::REPLACED;
use crate::machine::Machine;
use crate::network::Latency;

/// The longest flush of a disk that is well, in milliseconds.
const FLUSH: u64 = 1_000;
/// The longest a message takes one way between nodes that are well, in milliseconds: half of a round trip.
const ONE_WAY: u64 = 250;

/// Sets of voters: a majority of each decides.
pub(in crate::world) type VoterSets = BTreeSet<BTreeSet<NodeId>>;

/// When each node, and each path, was last unwell, in milliseconds of the run.
#[derive(Default)]
pub(in crate::world) struct Health {
    nodes: BTreeMap<NodeId, u64>,
    paths: BTreeMap<(NodeId, NodeId), u64>,
    all: u64,
}

/// Nodes that are a majority of each set of voters, and are well.
pub(super) struct Quorum {
    pub(super) nodes: Vec<NodeId>,
    /// Since when.
    pub(super) since: u64,
}

impl Health {
    pub(in crate::world) fn all_unwell(&mut self, now: u64) {
        self.all = now;
    }

    pub(in crate::world) fn path_unwell(&mut self, one: NodeId, other: NodeId, now: u64) {
        self.paths.insert((one.min(other), one.max(other)), now);
    }

    /// The quorum that is well for longest.
    pub(super) fn quorum(&self, voters: &VoterSets) -> Option<Quorum> {
        self.quorums(voters).min_by_key(|quorum| quorum.since)
    }

    /// The same, of those that `node` belongs to.
    pub(super) fn quorum_with(&self, node: NodeId, voters: &VoterSets) -> Option<Quorum> {
        self.quorums(voters).filter(|quorum| quorum.nodes.contains(&node)).min_by_key(|quorum| quorum.since)
    }

    fn quorums(&self, voters: &VoterSets) -> impl Iterator<Item = Quorum> {
        let all: BTreeSet<NodeId> = voters.iter().flatten().copied().collect();
        let parts = (1_u32..1 << all.len().min(12)).map(move |part| {
            let are_in = all.iter().enumerate().filter(|(bit, _)| part >> bit & 1 == 1);
            are_in.map(|(_, id)| *id).collect::<Vec<NodeId>>()
        });
        let is_majority = |nodes: &[NodeId], of: &BTreeSet<NodeId>| {
            nodes.iter().filter(|id| of.contains(id)).count() > of.len() / 2
        };
        let quorums = parts.filter(move |nodes| voters.iter().all(|set| is_majority(nodes, set)));
        quorums.map(|nodes| Quorum { since: self.since(&nodes), nodes })
    }

    /// Since when all of `nodes` and the paths between them are well.
    fn since(&self, nodes: &[NodeId]) -> u64 {
        let of_nodes = nodes.iter().filter_map(|id| self.nodes.get(id));
        let of_paths =
            self.paths.iter().filter(|((one, other), _)| nodes.contains(one) && nodes.contains(other));
        of_nodes.chain(of_paths.map(|(_, at)| at)).fold(self.all, |since, at| since.max(*at))
    }
}

impl World {
    /// Notes what is unwell now.
    pub(super) fn look_at_health(&mut self) {
        let now = self.now;
        let health = &mut self.alive.health;
        let Latency { most, spikes, spike, .. } = self.network.latency();
        if most > ONE_WAY || spikes > 0 && spike > ONE_WAY || self.flush.1 > FLUSH {
            health.all = now;
        }
        let machines: Vec<(NodeId, &Machine)> =
            self.machines.range(..REPLACED).map(|(id, machine)| (*id, machine)).collect();
        for (id, machine) in &machines {
            let is_well = machine.handle().is_some()
                && machine.frozen_until == 0
                && machine.fuse.is_none()
                && machine.long_flush.is_none()
                && machine.hangs_until <= now
                && machine.flush_ends.is_none_or(|at| at <= now + FLUSH);
            if !is_well {
                health.nodes.insert(*id, now);
            }
            for (other, there) in machines.iter().filter(|(other, _)| other > id) {
                if self.network.is_disturbed(machine.place, there.place) {
                    health.path_unwell(*id, *other, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quorum_is_well_though_one_path_is_not() {
        let mut health = Health::default();
        health.path_unwell(2, 1, 70);
        health.nodes.insert(2, 50);
        let three = VoterSets::from([BTreeSet::from([1, 2, 3])]);
        let quorum = health.quorum(&three).unwrap();
        assert_eq!((quorum.nodes, quorum.since), (vec![1, 3], 0));
        health.path_unwell(3, 1, 90);
        let quorum = health.quorum(&three).unwrap();
        assert_eq!((quorum.nodes, quorum.since), (vec![2, 3], 50));
        health.all_unwell(100);
        assert_eq!(health.quorum(&three).unwrap().since, 100);
    }

    #[test]
    fn a_quorum_is_a_majority_of_each_set_of_voters() {
        let mut health = Health::default();
        health.nodes.insert(2, 50);
        let quorum =
            health.quorum(&VoterSets::from([BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3])])).unwrap();
        assert_eq!((quorum.nodes, quorum.since), (vec![2, 3], 50));
    }
}
