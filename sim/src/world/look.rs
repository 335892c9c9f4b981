//! How the nodes see the cluster, and what they applied.

use std::borrow::Borrow;

use ringfence_laws::history::Sight;
use ringfence_raft::{Handle, NodeId};
use ringfence_wire::{ClusterStatus, Revision, Role};

use super::happen::REPLACED;
use super::{World, name};
use crate::machine::Machine;

/// How often the nodes are looked at, in milliseconds.
const LOOK: u64 = 100;

impl World {
    /// The leader of the newest term, and the members and voters as it knows them.
    pub fn leader(&self) -> Option<(NodeId, Vec<NodeId>, Vec<NodeId>)> {
        // Those that were replaced have the ids of others.
        let statuses = self.machines.range(..REPLACED).filter_map(|(_, machine)| machine.status());
        let leader = leader_of(statuses)?;
        let voters = voters(&leader).collect();
        Some((leader.node_id, leader.members.into_keys().collect(), voters))
    }

    /// How the nodes see the cluster, for people.
    pub fn statuses(&self) -> String {
        let status = |machine: &Machine| match machine.status() {
            None => format!("node {} does not run ({:?})", machine.id, machine.ended()),
            Some(status) => {
                let members: Vec<String> = status
                    .members
                    .iter()
                    .map(|(id, member)| format!("{id}{}", if member.voter { "" } else { " (learner)" }))
                    .collect();
                format!(
                    "node {}: {:?} in term {}, leader {:?}, last {:?}, committed {:?}, applied {:?}, members {}",
                    machine.id,
                    status.role,
                    status.term,
                    status.leader,
                    status.last_log_index,
                    status.committed_index,
                    status.applied_index,
                    members.join(" ")
                )
            }
        };
        self.machines.values().map(status).collect::<Vec<_>>().join("; ")
    }

    /// Looks at each node's table and changes, and compares them.
    pub fn look(&mut self) {
        self.looks_at = self.now + LOOK;
        let now_us = self.now * 1_000;
        if self.now % 1_000 < LOOK {
            self.story.detail(self.now, || self.statuses());
        }
        let look = |(id, machine): (&NodeId, &Machine)| Some((*id, machine.look()?));
        let looks: Vec<(NodeId, (Handle, ClusterStatus))> = self.machines.iter().filter_map(look).collect();
        let current = looks.iter().filter(|(id, _)| *id < REPLACED).map(|(_, (_, status))| status);
        if let Some(leader) = leader_of(current) {
            self.voters = voters(leader).collect();
        }
        for (id, (handle, status)) in looks {
            let sight = Sight {
                sent_us: now_us,
                ended_us: now_us,
                node: id,
                role: status.role,
                term: status.term,
                leader: status.leader,
                applied_index: status.applied_index,
                revision: status.revision,
                at_ms: status.at_ms,
            };
            if sight.role == Role::Leader && sight.term > self.led {
                self.led = sight.term;
                self.begins_to_lead();
                self.story.tell(self.now, format!("node {id} leads in term {}", sight.term));
                self.count("elections won");
            }
            if status.rules > self.rules && status.revision.0 > 0 {
                self.rules = status.rules;
                self.story.tell(self.now, format!("node {id} decides by rules {}", status.rules));
                if self.rules > 1 {
                    self.count("rules raised");
                }
            }
            self.sights.push(sight);
            if self.is_promised() {
                self.record_changes(id, &handle);
            }
        }
        self.look_at_turned();
        if self.is_promised() {
            self.look_alive();
        }
    }

    /// Whether all that is promised holds: not once disks were turned back of which nobody knows.
    pub fn is_promised(&self) -> bool {
        !self.turned.is_unknown
    }

    fn record_changes(&mut self, id: NodeId, handle: &Handle) {
        let starts = self.machines.get(&id).map_or(0, |machine| machine.starts);
        let (known_starts, from) = self.recorded.get(&id).copied().unwrap_or((starts, 0));
        let from = if known_starts == starts { from } else { 0 };
        let (changes, findings) = (&mut self.changes, &mut self.findings);
        let last = handle.history(|history| {
            let after = Revision(from).max(history.before());
            for event in history.after(after, "").into_iter().flatten() {
                match changes.get(&event.revision.0) {
                    None => drop(changes.insert(event.revision.0, event.clone())),
                    Some(known) if known != event => findings.push(format!(
                        "node {id} applied another change {} than others did: {event:?}, not {known:?}",
                        event.revision
                    )),
                    Some(_) => {}
                }
            }
            history.last()
        });
        self.recorded.insert(id, (starts, last.0));
    }

    /// Counts what a node that is about to thaw has missed.
    pub(super) fn notice_thaw(&mut self, id: NodeId) {
        let thaws = |machine: &Machine| machine.frozen_until != 0 && machine.frozen_until <= self.now;
        if !self.machines.get(&id).is_some_and(thaws) {
            return;
        }
        self.story.tell(self.now, format!("{} goes on", name(id)));
        if id >= REPLACED {
            self.count("machines that went on after they were replaced");
        }
        if self.leader().is_some_and(|(_, members, _)| !members.contains(&id)) {
            self.count("nodes removed while frozen");
        }
    }
}

/// The status of the leader of the newest term.
fn leader_of<S: Borrow<ClusterStatus>>(statuses: impl Iterator<Item = S>) -> Option<S> {
    let leads = |status: &ClusterStatus| status.leader == Some(status.node_id);
    statuses.filter(|status| leads(status.borrow())).max_by_key(|status| status.borrow().term)
}

fn voters(leader: &ClusterStatus) -> impl Iterator<Item = NodeId> {
    leader.members.iter().filter(|(_, member)| member.voter).map(|(id, _)| *id)
}
