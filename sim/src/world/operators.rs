//! What operators do about nodes: they add them, and replace those that lost their disk or their machine.

use std::sync::Arc;

use ringfence_raft::NodeId;

use super::World;
use super::happen::REPLACED;
use crate::machine::Machine;

impl World {
    /// Another machine gets the id of a node, which runs on. An operator does so only once the removal was answered: until it is
    /// committed, another leader may undo it.
    pub(super) fn replace(&mut self, asks: NodeId, node: NodeId) {
        let is_gone = self.gone.lock().expect("nothing panics while the removals are locked").contains(&node);
        // An addition that was asked for before the removal may be done after it.
        let is_added = self.additions.get(&node).is_some_and(|running| {
            Arc::strong_count(running) > 1
                || self.leader().is_none_or(|(_, members, _)| members.contains(&node))
        });
        if !is_gone || is_added || self.machines.contains_key(&(node + REPLACED)) {
            return;
        }
        let Some(old) = self.machines.remove(&node) else { return };
        let place = node + REPLACED;
        self.story
            .tell(self.now, format!("messages of the new node {node} are told as those of node {place}"));
        self.machines.insert(node + REPLACED, old);
        self.removed.insert(node + REPLACED);
        let mut machine = Machine::at(node, node + REPLACED, &[], true, &self.plan, &self.story);
        machine.start(self.now, &self.network);
        self.machines.insert(node, machine);
        self.recorded.remove(&node);
        self.count("machines replaced");
        self.add(asks, node);
    }

    /// Asks a node to add another.
    pub fn add(&mut self, asks: NodeId, node: NodeId) {
        let Some(peer) = self.machines.get(&node).map(|machine| machine.address().to_owned()) else { return };
        let running = Arc::clone(self.additions.entry(node).or_default());
        self.spawn_on(asks, |handle| async move {
            let _ = handle.add_member(node, peer).await;
            drop(running);
        });
        self.count("additions asked for");
    }

    /// Does what an operator does about a node that lost its disk, or must not go on with it: removes it, and adds it again.
    pub fn replace_wiped(&mut self) {
        let Some(node) = self.wiped.take().filter(|_| self.findings.is_empty()) else { return };
        self.kill(node, false, 10);
        let is_empty = self.turned.is_nothing();
        if let Some(machine) = self.machines.get_mut(&node) {
            match is_empty {
                true => machine.join(),
                false => machine.wipe(true),
            }
        }
        self.turned.forgetful.remove(&node);
        for _ in 0..30 {
            self.run_until(self.now + 1_000);
            let is_back = self.handle(node).is_some();
            if is_back {
                return self.count("replacements of wiped disks");
            }
            let Some((leader, members, _)) = self.leader() else { continue };
            match members.contains(&node) {
                true => drop(self.spawn_on(leader, |handle| async move {
                    let _ = handle.remove_member(node).await;
                })),
                false => self.add(leader, node),
            }
        }
    }
}
