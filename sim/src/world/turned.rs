//! Disks that are turned back, and what is still promised then.
//!
//! A node whose disk is turned back has forgotten what it voted and acknowledged. The leader to which it acknowledged that knows,
//! as long as it leads: nobody lets the node in, and all that is promised holds. If another leads then, or a node has gone, nobody
//! may know, and grants may be lost. What holds even then is that no token is granted twice.

use std::collections::BTreeMap;

use ringfence_raft::NodeId;

use super::happen::REPLACED;
use super::{World, name};
use crate::disk::Copy;
use crate::machine::Machine;

/// The keys of the second processes begin here. Each has the place in the network of this number.
pub(super) const SECOND: u64 = 2 * REPLACED;
/// How long a node that has forgotten something, or two processes of one node, may serve; milliseconds.
const SERVES: u64 = 3_000;

/// What findings begin with, for the hunts of mutants.
pub(crate) const FORGETFUL_SERVES: &str = "serves though it has forgotten";
pub(crate) const BOTH_SERVE: &str = "two processes serve as node";

/// What was turned back.
#[derive(Default)]
pub(super) struct Turned {
    /// The copies, each with the last entry of the log then.
    copies: BTreeMap<NodeId, (Copy, Option<u64>)>,
    /// The nodes whose disks were turned back, and that have forgotten something, with when they did not serve.
    pub(super) forgetful: BTreeMap<NodeId, u64>,
    /// The node of which there are two processes, with when not both of them served.
    twice: Option<(NodeId, u64)>,
    /// Whether nodes that knew better have gone, too.
    pub(super) is_unknown: bool,
}

impl Turned {
    pub(super) fn is_nothing(&self) -> bool {
        self.copies.is_empty() && self.twice.is_none()
    }
}

impl World {
    pub(super) fn copy_disks(&mut self) {
        let machines = self.machines.range(..REPLACED);
        let copies = machines.map(|(id, machine)| (*id, (machine.disk.copy(), machine.last_index())));
        self.turned.copies = copies.collect();
        self.count("copies of all disks");
    }

    /// Turns disks back. Of a single one, which does not lead, the leader knows.
    pub(super) fn turn_back(&mut self, nodes: &[NodeId], down: u64) {
        if self.turned.copies.is_empty() || !self.has_begun() {
            return;
        }
        let all_run = self.machines.range(..REPLACED).all(|(_, machine)| machine.handle().is_some());
        let leads = |node: &NodeId| self.leader().is_none_or(|(leader, ..)| leader == *node);
        match nodes {
            [node] if all_run && self.may_lose(*node) && !leads(node) => self.wiped = Some(*node),
            _ => self.turned.is_unknown = true,
        }
        for id in nodes {
            let Some(machine) = self.machines.get(id) else { continue };
            let Some((copy, last)) = self.turned.copies.get(id).cloned() else { continue };
            if machine.last_index() > last {
                self.turned.forgetful.insert(*id, self.now);
            }
            self.removed.insert(*id);
            self.kill(*id, false, down);
            if let Some(machine) = self.machines.get(id) {
                machine.disk.turn_back(&copy);
            }
        }
        self.count(if self.turned.is_unknown { "disks of some turned back" } else { "a disk turned back" });
    }

    /// A node goes, or begins to lead: what others knew of disks that were turned back is known no longer.
    pub(super) fn forgets(&mut self, id: NodeId) {
        self.turned.is_unknown |=
            !self.turned.forgetful.is_empty() && !self.turned.forgetful.contains_key(&id);
    }

    /// Starts a second process of a node, with a copy of its disk.
    pub(super) fn start_second(&mut self, node: NodeId) {
        if !self.may_lose(node) || self.handle(node).is_none() {
            return;
        }
        let mut second = Machine::at(node, node + SECOND, &[], true, &self.plan, &self.story);
        if let Some(first) = self.machines.get(&node) {
            second.disk.turn_back(&first.disk.copy());
        }
        self.wiped = Some(node);
        self.removed.extend([node, node + SECOND]);
        second.start(self.now, &self.network);
        self.machines.insert(node + SECOND, second);
        self.turned.twice = Some((node, self.now));
        self.count("second processes with a copy of a disk");
    }

    /// Judges who serves.
    pub(super) fn look_at_turned(&mut self) {
        let serves = |id: &NodeId| {
            self.machines.get(id).and_then(Machine::status).is_some_and(|status| status.leader.is_some())
        };
        for (id, since) in &mut self.turned.forgetful {
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
