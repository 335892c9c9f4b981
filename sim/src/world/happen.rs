//! What goes wrong, and what operators do.

use std::sync::Arc;

use ringfence_laws::history::Fault;
use ringfence_raft::NodeId;

use super::World;
use crate::machine::Machine;
use crate::network::{Hold, Latency, Narrow};
use crate::plan::{NEWEST_RULES, What};

/// The keys of machines that were replaced begin here. Each has the place in the network that it had.
pub(super) const REPLACED: u64 = 1_000;
/// How many kinds of connections there are, and the one for appends.
const CHANNELS: u8 = 7;
const APPENDS: u8 = 3;

/// What ends later.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Heal,
    Latency,
    Flush,
    GiveUp,
}

impl World {
    /// Whether there is what the fault is aimed at, and an operator would do it.
    fn is_possible(&self, what: &What) -> bool {
        let runs = |node: &NodeId| self.machines.get(node).is_some_and(|machine| machine.process.is_some());
        match what {
            What::Fuse { node, .. }
            | What::Stop { node, .. }
            | What::Reinstall { node, .. }
            | What::Move { node, .. }
            | What::Freeze { node, .. } => runs(node),
            What::Transfer { asks, .. } | What::Raise { asks } => self.handle(*asks).is_some(),
            // Not in a cluster that lacks a disk.
            What::Remove { asks, .. } => self.wiped.is_none() && self.handle(*asks).is_some(),
            _ => true,
        }
    }

    pub(super) fn happen(&mut self, what: What) {
        let what = what.of(self.leader().map_or(1, |(leader, ..)| leader));
        if !self.is_possible(&what) {
            return;
        }
        let now = self.now;
        self.story.tell(now, what.to_string());
        self.faults.push(Fault {
            nemesis: what.nemesis().to_owned(),
            what: what.to_string(),
            nodes: what.nodes(),
            from_us: now * 1_000,
            to_us: (now + what.lasts()) * 1_000,
        });
        if what.nemesis() == "members" {
            self.alive.health.all_unwell(now);
        }
        let hold = what.hold(now, |node| self.place(node));
        match what {
            What::Kill { node, power, down } => {
                self.count(if power { "power cuts" } else { "kills" });
                self.kill(node, power, down);
            }
            What::Fuse { node, operations, power, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.store.stop_at(operations);
                    machine.fuse = Some((power, down));
                }
            }
            What::Stop { node, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.fuse = Some((false, down));
                    machine.stop();
                }
                self.count("stops in order");
            }
            What::Freeze { node, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.frozen_until = machine.frozen_until.max(now + lasts);
                }
                self.count("freezes");
            }
            What::Cut { from, to, lasts } => {
                self.network.cut(self.place(from), self.place(to));
                self.later.entry(now + lasts).or_default().push(Ending::Heal);
                self.count("cuts of one direction");
            }
            What::Isolate { node, lasts } => {
                let place = self.place(node);
                for other in self.machines.values().map(|it| it.place).filter(|other| *other != place) {
                    self.network.cut(place, other);
                    self.network.cut(other, place);
                }
                self.later.entry(now + lasts).or_default().push(Ending::Heal);
                self.count("nodes isolated");
            }
            What::Deaf { node, lasts } => {
                let (to, until) = (self.place(node), now + lasts);
                for from in self.others(node) {
                    self.network.hold(Hold { from, to, channel: None, replies: Some(false), over: 0, until });
                }
                self.count("nodes made deaf");
            }
            What::Late { node, lasts, ends } => {
                let (place, until) = (self.place(node), now + lasts);
                for (number, from) in self.others(node).into_iter().enumerate() {
                    let late = ends.get(number).copied().unwrap_or(lasts);
                    self.network.hold(Hold {
                        from: place,
                        to: from,
                        channel: None,
                        replies: None,
                        over: 0,
                        until,
                    });
                    let hold = |channel, replies, until| {
                        self.network.hold(Hold {
                            from,
                            to: place,
                            channel,
                            replies: Some(replies),
                            over: 0,
                            until,
                        });
                    };
                    hold(None, false, until);
                    for channel in 0..CHANNELS {
                        hold(Some(channel), true, if channel == APPENDS { now + late } else { until });
                    }
                }
                self.count("leaders cut off, their answers late");
            }
            What::LongFlush { node, after, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.long_flush = Some((after, lasts));
                }
                self.count("long flushes");
            }
            What::Blackout { wiped, pause, downs } => {
                let ids: Vec<NodeId> = self.current().collect();
                let wiped = wiped.filter(|_| self.has_begun());
                for (id, down) in ids.iter().zip(downs) {
                    self.kill(*id, true, down);
                    if let Some(machine) = self.machines.get_mut(id) {
                        machine.start_pause = pause;
                    }
                }
                self.count("power cuts of all");
                if let Some(node) = wiped {
                    self.wipe(node, false);
                }
            }
            What::Replace { asks, node } => self.replace(asks, node),
            What::Hold { .. } => {
                if let Some(hold) = hold {
                    self.network.hold(hold);
                }
                self.count("channels held");
            }
            What::Reset { one, other } => {
                self.network.reset(self.place(one), self.place(other));
                self.alive.health.path_unwell(one, other, now);
                self.count("connections broken");
            }
            What::Clog { node, over, lasts } => {
                let (from, until) = (self.place(node), now + lasts);
                for to in self.others(node) {
                    self.network.hold(Hold { from, to, channel: None, replies: None, over, until });
                }
                self.count("nodes clogged");
            }
            What::Tear { node, lasts } => self.network.tear(self.place(node), now + lasts),
            What::Narrow { from, to, rate, lasts } => {
                let others = self.others(from);
                let to = Some(self.place(to)).filter(|to| others.contains(to)).or(others.first().copied());
                if let Some(to) = to {
                    self.network.narrow(Narrow { from: self.place(from), to, rate, until: now + lasts });
                }
                self.count("paths narrowed");
            }
            What::SlowDisks { least, most, lasts } => {
                self.flush = (least, most);
                self.later.entry(now + lasts).or_default().push(Ending::Flush);
                self.count("disks slowed");
            }
            What::Slow { least, most, lasts } => {
                let latency = Latency { least, most, ..self.plan.latency };
                self.network.set_latency(latency);
                self.later.entry(now + lasts).or_default().push(Ending::Latency);
                self.count("networks slowed");
            }
            What::Hang { node, lasts } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.hangs_until = now + lasts;
                }
            }
            What::Error { node, operations } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.store.fail_at(operations);
                }
                self.count("disk errors");
            }
            What::Rot { node } => {
                if let Some(machine) = self.machines.get_mut(&node)
                    && machine.store.rot_snapshot(&mut self.rng)
                {
                    self.count("snapshots rotten");
                }
            }
            What::Transfer { asks, to } => {
                self.spawn_on(asks, |handle| async move {
                    let _ = handle.transfer_leadership(Some(to)).await;
                });
                self.count("transfers asked for");
            }
            What::Remove { asks, node, force } => {
                let gone = Arc::clone(&self.gone);
                self.spawn_on(asks, move |handle| async move {
                    let done = match force {
                        true => handle.force_remove_member(node).await,
                        false => handle.remove_member(node).await,
                    };
                    if done.is_ok() {
                        gone.lock().expect("nothing panics while the removals are locked").insert(node);
                    }
                });
                self.removed.insert(node);
                self.count("removals asked for");
            }
            What::Add { asks, node } => {
                let mut machine = Machine::new(node, &[], true, &self.plan, &self.story);
                machine.start(now, &self.network);
                self.machines.insert(node, machine);
                self.nodes.lock().expect("nothing panics while the nodes are locked").push(node);
                self.add(asks, node);
            }
            What::Wipe { node, join } if self.has_begun() => self.wipe(node, join),
            What::Wipe { .. } => {}
            What::Copy => self.copy_disks(),
            What::TurnBack { nodes, down } => self.turn_back(&nodes, down),
            What::Clone { node } => self.start_second(node),
            What::Reinstall { node, newest, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.newest_rules = newest;
                    machine.fuse = Some((false, down));
                    machine.stop();
                }
                self.count("programs replaced");
            }
            What::Move { node, down } => {
                if let Some(machine) = self.machines.get_mut(&node) {
                    machine.fuse = Some((false, down));
                    machine.move_away();
                }
                self.count("nodes moved");
            }
            What::Raise { asks } => {
                self.spawn_on(asks, |handle| async move {
                    let _ = handle.upgrade(None, false).await;
                });
                self.count("raises asked for");
            }
        }
    }

    /// Whether the others can do without the disk of a node. While a member is removed, they may need every one of them.
    pub(super) fn may_lose(&self, node: NodeId) -> bool {
        self.voters.len() >= 3
            && self.voters.contains(&node)
            && self.wiped.is_none()
            && self.removed.is_empty()
    }

    fn wipe(&mut self, node: NodeId, join: bool) {
        if self.may_lose(node) {
            self.wiped = Some(node);
            self.kill(node, true, 10);
            if let Some(machine) = self.machines.get_mut(&node) {
                machine.wipe(join);
            }
            self.removed.insert(node);
            self.count("disks wiped");
        }
    }

    /// Whether a quorum has the first membership. If the founder loses its disk before that, the cluster never begins: its
    /// operator has to start again with empty disks.
    pub(super) fn has_begun(&self) -> bool {
        self.machines.values().filter_map(Machine::status).any(|status| status.committed_index.is_some())
    }

    /// The machines that were not replaced.
    fn current(&self) -> impl Iterator<Item = NodeId> {
        self.machines.keys().copied().filter(|id| *id < REPLACED)
    }

    /// The places of all current nodes but one.
    fn others(&self, node: NodeId) -> Vec<u64> {
        self.current().filter(|other| *other != node).map(|other| self.place(other)).collect()
    }

    pub(super) fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Heal => self.network.heal(),
            Ending::Latency => self.network.set_latency(self.plan.latency),
            Ending::Flush => self.flush = self.plan.flush,
            Ending::GiveUp => self.network.give_up_silent(),
        }
    }

    /// Ends all faults for good, and starts all nodes.
    pub fn heal(&mut self) {
        self.plan.faults.clear();
        let replaced: Vec<NodeId> = self.machines.keys().copied().filter(|id| *id >= REPLACED).collect();
        for id in replaced {
            self.kill(id, false, 0);
            self.machines.remove(&id);
        }
        self.network.heal();
        self.network.give_up_silent();
        self.plan.latency.spikes = 0;
        self.network.set_latency(self.plan.latency);
        self.flush = self.plan.flush;
        for machine in self.machines.values_mut() {
            machine.frozen_until = machine.frozen_until.min(self.now + 1);
            (machine.hangs_until, machine.long_flush, machine.start_pause) = (0, None, 0);
            machine.store.disk.heal();
            machine.flush_ends = machine.flush_ends.map(|at| at.min(self.now + 1));
            machine.newest_rules = NEWEST_RULES;
            machine.starts_at = machine.starts_at.map(|at| at.min(self.now + 1));
        }
        self.story.tell(self.now, "all is healed");
    }

    /// The place of a node in the network.
    fn place(&self, node: NodeId) -> u64 {
        self.machines.get(&node).map_or(node, |machine| machine.place)
    }
}
