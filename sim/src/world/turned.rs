//! Disks that are turned back, and what is still promised then.
//!
//! A node whose disk is turned back has forgotten what it voted and acknowledged. The leader to which it acknowledged that knows
//! while it leads: the node is not let in, and all promises hold. They also hold if the others elect a leader before the node comes
//! back, and that leader commits something: then the node may be let in. If the node was up when a leader was elected, or another
//! node goes, nobody may know, and grants may be lost. Even then no token is granted twice.

use std::collections::BTreeMap;

use ringfence_raft::NodeId;

use super::happen::REPLACED;
use super::{World, name};
use crate::machine::Machine;
use crate::plan::NEWEST_RULES;
use crate::store::Copy;

/// The keys of the second processes begin here. Each has the place in the network of this number.
pub(super) const SECOND: u64 = 2 * REPLACED;
/// How long a node that has forgotten something, or two processes of one node, may serve; milliseconds.
const SERVES: u64 = 3_000;

/// What findings begin with, for the hunts of mutants.
pub(crate) const FORGETFUL_SERVES: &str = "serves though it has forgotten";
pub(crate) const BOTH_SERVE: &str = "two processes serve as node";
pub(crate) const CONDEMNED: &str = "the true member ends because of a copy";

/// What was turned back.
#[derive(Default)]
pub(super) struct Turned {
    /// The copies, each with the last entry of the log then.
    copies: BTreeMap<NodeId, (Copy, Option<u64>)>,
    /// The nodes whose disks were turned back, and that have forgotten something.
    pub(super) forgetful: BTreeMap<NodeId, Forgetful>,
    /// The node of which there are two processes, with when not both of them served.
    twice: Option<(NodeId, u64)>,
    /// Whether nodes that knew better have gone, too.
    pub(super) is_unknown: bool,
}

/// A node that has forgotten something.
pub(super) struct Forgetful {
    /// When it did not serve.
    since: u64,
    /// The term when its disk was turned back.
    term: u64,
    /// Whether it led then.
    led: bool,
}

impl Turned {
    pub(super) fn is_nothing(&self) -> bool {
        self.copies.is_empty() && self.twice.is_none()
    }
}

impl World {
    /// Copies all disks, unless the cluster has begun with rules under which no leader raises the revision.
    pub(super) fn copy_disks(&mut self) {
        let handles = self.machines.values().filter_map(Machine::handle);
        let mut rules = handles.filter_map(|it| it.view(|table| table.started().then(|| table.rules())));
        if rules.any(|rules| rules < NEWEST_RULES) || (1..NEWEST_RULES).contains(&self.rules) {
            return;
        }
        let machines = self.machines.range(..REPLACED);
        let copies = machines.map(|(id, machine)| (*id, (machine.store.copy(), machine.last_index())));
        self.turned.copies = copies.collect();
        self.count("copies of all disks");
    }

    /// Turns disks back. If it is one, and all nodes run, the others may know what it has forgotten.
    pub(super) fn turn_back(&mut self, nodes: &[NodeId], down: u64) {
        if self.turned.copies.is_empty() || !self.has_begun() {
            return;
        }
        let all_run = self.machines.range(..REPLACED).all(|(_, machine)| machine.handle().is_some());
        let leader = self.leader().map(|(leader, ..)| leader);
        // One that was elected a moment ago has not been looked at yet.
        let statuses = self.machines.range(..REPLACED).filter_map(|(_, machine)| machine.status());
        let terms = statuses.filter(|status| status.leader == Some(status.node_id)).map(|status| status.term);
        let term = terms.fold(self.led, u64::max);
        match nodes {
            [node] if all_run && self.may_lose(*node) && leader.is_some() => self.wiped = Some(*node),
            _ => self.turned.is_unknown = true,
        }
        for id in nodes {
            let Some(machine) = self.machines.get(id) else { continue };
            let Some((copy, last)) = self.turned.copies.get(id).cloned() else { continue };
            if machine.last_index() > last {
                let forgetful = Forgetful { since: self.now, term, led: leader == Some(*id) };
                self.turned.forgetful.insert(*id, forgetful);
            }
            self.removed.insert(*id);
            self.kill(*id, false, down);
            if let Some(machine) = self.machines.get(id) {
                machine.store.turn_back(&copy);
            }
        }
        self.count(if self.turned.is_unknown { "disks of some turned back" } else { "a disk turned back" });
    }

    /// A node goes: what it knew of disks that were turned back is known no longer.
    pub(super) fn forgets(&mut self, id: NodeId) {
        self.turned.is_unknown |=
            !self.turned.forgetful.is_empty() && !self.turned.forgetful.contains_key(&id);
    }

    /// A leader begins: a node that runs may have voted for it though it has forgotten something.
    pub(super) fn begins_to_lead(&mut self) {
        self.turned.is_unknown |= self.turned.forgetful.keys().any(|id| self.is_up(*id));
    }

    /// A node comes back. If it led when its disk was turned back, or another has been elected since, nobody may know what it has
    /// forgotten. Once that leader has committed something, the node is not in this list any more.
    pub(super) fn comes_back(&mut self, id: NodeId) {
        self.turned.is_unknown |=
            self.turned.forgetful.get(&id).is_some_and(|it| it.led || it.term < self.led);
    }

    /// A leader of `term` has committed something. It was elected without the forgetful nodes that are down, so the others have all
    /// that was committed before.
    pub(super) fn has_committed(&mut self, term: u64) {
        let down: Vec<NodeId> = self.turned.forgetful.keys().copied().filter(|id| !self.is_up(*id)).collect();
        let before = self.turned.forgetful.len();
        self.turned.forgetful.retain(|id, it| it.term >= term || !down.contains(id));
        for _ in self.turned.forgetful.len()..before {
            self.count("forgetful nodes that do no harm");
        }
    }

    fn is_up(&self, id: NodeId) -> bool {
        self.machines.get(&id).is_some_and(|machine| machine.process.is_some())
    }

    /// Starts a second process of a node, with a copy of its disk.
    pub(super) fn start_second(&mut self, node: NodeId) {
        if !self.may_lose(node) || self.handle(node).is_none() {
            return;
        }
        let mut second = Machine::at(node, node + SECOND, &[], true, &self.plan, &self.story);
        if let Some(first) = self.machines.get(&node) {
            second.store.turn_back(&first.store.copy());
        }
        self.wiped = Some(node);
        self.removed.extend([node, node + SECOND]);
        second.start(self.now, &self.network);
        self.machines.insert(node + SECOND, second);
        self.turned.twice = Some((node, self.now));
        self.count("second processes with a copy of a disk");
    }

    /// A process was told that it runs with a copy. Whoever stands still for a while, the copy is the other one.
    pub(super) fn ends_as_copy(&mut self, id: NodeId) {
        if self.turned.twice.is_some_and(|(node, _)| node == id) {
            self.findings.push(format!("{CONDEMNED}: {}", name(id)));
        }
    }

    /// Judges who serves.
    pub(super) fn look_at_turned(&mut self) {
        let serves = |id: &NodeId| {
            self.machines.get(id).and_then(Machine::status).is_some_and(|status| status.leader.is_some())
        };
        for (id, Forgetful { since, .. }) in &mut self.turned.forgetful {
            if !serves(id) {
                *since = self.now;
            }
            if self.now - *since > SERVES && !self.turned.is_unknown {
                self.findings.push(format!("{} {FORGETFUL_SERVES}, and the others know", name(*id)));
            }
        }
        if let Some((node, since)) = &mut self.turned.twice {
            if !serves(node) || !serves(&(*node + SECOND)) {
                *since = self.now;
            }
            if self.now - *since > SERVES {
                self.findings.push(format!("{BOTH_SERVE} {node}"));
            }
        }
    }
}
