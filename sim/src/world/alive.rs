//! What must go on while a quorum is well, whatever the other nodes, disks and paths do.
//!
//! A node is well while it runs and its disk answers; a path, while nothing keeps messages back on it. All of a quorum must be
//! well, and all paths between them. Then
//! - a leader answers, confirmed by a quorum, after at most [`LEADS_WITHIN`];
//! - no entry of the leader waits for longer than [`COMMITS_WITHIN`];
//! - while the leader is one of them, its clock follows real time: see [`Time`].
//!
//! And at any time: what is due has been done when a leader answers, but for [`OVERDUE`]; the memory of a node holds little more
//! of the log than a snapshot makes superfluous; and no node connects again and again.

mod health;
mod time;

use std::sync::{Arc, Mutex};

use ringfence_lease::LeaseTable;
use ringfence_raft::NodeId;
use ringfence_wire::ClusterStatus;

use self::health::Health;
use self::time::Time;
use super::happen::REPLACED;
use super::{World, name};
use crate::machine::Machine;

/// How long a quorum that is well may be without a leader that answers, in milliseconds. While followers catch up, it does not count:
/// a new leader may have to send hundreds of entries first, 8 in each message, over long links.
const LEADS_WITHIN: u64 = 20_000;
/// How long an entry of a leader may wait while a quorum is well, in milliseconds; likewise.
const COMMITS_WITHIN: u64 = 15_000;
/// How often the leader is asked for its clock, in milliseconds.
const PULSE: u64 = 500;
/// By how much of cluster time anything may be overdue when a leader answers, in milliseconds: a leader's clock runs ahead of what
/// is committed by 2 s.
const OVERDUE: u64 = 2_500;
/// Bytes of a log that count for nothing: what is written while a snapshot is.
const SLACK: u64 = 512 << 10;
/// How many connections a node may open to another in a second.
const CONNECTIONS: u64 = 60;

/// What findings of these laws begin with, for the hunts of mutants.
pub(crate) const NOBODY_LEADS: &str = "nobody leads";
pub(crate) const NOTHING_COMMITS: &str = "nothing is committed";
pub(crate) const TIME_LAGS: &str = "cluster time lags";
const ENDS_LATE: &str = "a lease or a wait has not ended";
pub(crate) const LOG_FILLS_MEMORY: &str = "the log fills the memory";
pub(crate) const CONNECTS_ALL_THE_TIME: &str = "connects all the time";

/// What the laws of this module know of a run.
#[derive(Default)]
pub(super) struct Alive {
    pub(super) health: Health,
    time: Time,
    /// When a leader was last known to lead.
    led_at: u64,
    /// How many entries the followers of a leader lack, in its term, and when they last came to lack fewer.
    lacks: Option<(NodeId, u64, u64)>,
    caught_up_at: u64,
    /// What leaders have answered.
    pulses: Arc<Mutex<Vec<Pulse>>>,
    pulse_at: u64,
    second: u64,
}

/// What a leader has answered.
#[derive(Clone, Copy)]
struct Pulse {
    node: NodeId,
    term: u64,
    /// Its clock, in milliseconds.
    at_ms: u64,
    /// When the next lease or wait is to end.
    due_ms: Option<u64>,
}

impl World {
    /// Judges what goes on now.
    pub(super) fn look_alive(&mut self) {
        self.look_at_health();
        let leader = self.leader().map(|(leader, ..)| leader);
        self.take_pulse(leader);
        self.look_at_followers(leader);
        if let Some(quorum) = self.alive.health.quorum(&self.voters) {
            let since = self.alive.caught_up_at.max(quorum.since);
            let is_well_for = |time| self.now.saturating_sub(since) > time;
            let without_leader = self.now.saturating_sub(self.alive.led_at.max(since));
            if without_leader > LEADS_WITHIN {
                self.findings.push(format!(
                    "{NOBODY_LEADS} for {without_leader} ms, though nodes {:?} are well: {}",
                    quorum.nodes,
                    self.statuses()
                ));
            }
            let waits_ms = leader.and_then(|id| self.machines.get(&id)).map_or(0, Machine::waits_ms);
            if waits_ms > COMMITS_WITHIN && is_well_for(COMMITS_WITHIN) {
                self.findings.push(format!(
                    "{NOTHING_COMMITS} for {waits_ms} ms, though nodes {:?} are well: {}",
                    quorum.nodes,
                    self.statuses()
                ));
            }
        }
        if self.now / 1_000 != self.alive.second {
            self.alive.second = self.now / 1_000;
            self.look_at_memory();
            self.look_at_connections();
        }
    }

    /// Notes whether the followers of `leader` catch up.
    fn look_at_followers(&mut self, leader: Option<NodeId>) {
        let status = leader.and_then(|id| self.machines.get(&id)).and_then(Machine::status);
        let Some(status) = status else { return };
        let lacks = status.members.values().filter_map(|member| member.lag_entries).sum();
        let now = (status.node_id, status.term, lacks);
        let before = self.alive.lacks.replace(now);
        if before.is_some_and(|before| (before.0, before.1) == (now.0, now.1) && lacks < before.2) {
            self.alive.caught_up_at = self.now;
        }
    }

    /// Learns what leaders have answered, and asks the leader again from time to time.
    fn take_pulse(&mut self, leader: Option<NodeId>) {
        let pulses = std::mem::take(
            &mut *self.alive.pulses.lock().expect("nothing panics while the pulses are locked"),
        );
        for Pulse { node, term, at_ms, due_ms } in pulses {
            self.alive.led_at = self.now;
            self.has_committed(term);
            let told = self.told(node, at_ms);
            let debt = self.alive.time.goes_on(told, self.plan.slowest());
            let told = || format!("{} says it is {at_ms} ms; {}", name(node), self.alive.time.told());
            self.story.detail(self.now, told);
            if debt.is_some() {
                self.findings.push(format!("{TIME_LAGS}, though a leader commits: {}", told()));
            }
            if let Some(due_ms) = due_ms.filter(|due_ms| at_ms > due_ms + OVERDUE) {
                self.findings.push(format!("{ENDS_LATE} that was to end at {due_ms} ms: {}", told()));
            }
        }
        if self.now < self.alive.pulse_at {
            return;
        }
        self.alive.pulse_at = self.now + PULSE;
        let Some(node) = leader else { return };
        let pulses = Arc::clone(&self.alive.pulses);
        self.spawn_on(node, |handle| async move {
            let leads_in = |status: ClusterStatus| (status.leader == Some(node)).then_some(status.term);
            let Some(term) = leads_in(handle.status()) else { return };
            let Ok(at_ms) = handle.linearize().await else { return };
            if leads_in(handle.status()) == Some(term) {
                let due_ms = handle.view(LeaseTable::next_due_ms);
                let mut pulses = pulses.lock().expect("nothing panics while the pulses are locked");
                pulses.push(Pulse { node, term, at_ms, due_ms });
            }
        });
    }

    fn look_at_memory(&mut self) {
        for (id, machine) in self.machines.range(..REPLACED) {
            let Some(handle) = machine.handle() else { continue };
            let bytes = handle.log_bytes_in_memory();
            let bound = 4 * self.plan.snapshot_after_bytes.max(machine.disk.snapshot_bytes()) + SLACK;
            self.story.detail(self.now, || format!("{} has {bytes} bytes of its log in memory", name(*id)));
            if bytes > bound {
                self.findings.push(format!(
                    "{LOG_FILLS_MEMORY} of {}: {bytes} bytes, and at most {bound} are of use",
                    name(*id)
                ));
            }
        }
    }

    fn look_at_connections(&mut self) {
        for ((from, to), count) in self.network.take_opened() {
            if count > CONNECTIONS {
                self.findings.push(format!(
                    "{} {CONNECTS_ALL_THE_TIME}: {count} times to {} in a second",
                    name(from),
                    name(to)
                ));
            }
        }
    }
}
