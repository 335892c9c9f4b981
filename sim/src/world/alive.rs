//! What must go on while a quorum is well, whatever the other nodes, disks and paths do.
//!
//! A node is well while it runs and its disk answers; a path, while nothing keeps messages back on it. All of a quorum must be
//! well, and all paths between them. Then
//! - a leader answers, confirmed by a quorum, after at most [`LEADS_WITHIN`];
//! - no entry of the leader waits for longer than [`COMMITS_WITHIN`]; both count from when its followers last came to lack fewer
//!   entries than before in its term;
//! - a majority of the voters answers reads: see [`Served`];
//! - while the leader is one of them, its clock follows real time: see [`Time`].
//!
//! And at any time: what is due has been done when a leader answers, but for [`OVERDUE`]; the memory of a node holds little more
//! of the log than a snapshot makes superfluous; and no node connects again and again.

mod health;
mod served;
mod time;

use std::sync::{Arc, Mutex};

use ringfence_lease::LeaseTable;
use ringfence_raft::NodeId;
use ringfence_wire::ClusterStatus;

use self::health::{Health, VoterSets};
pub(crate) use self::served::NOBODY_SERVES;
use self::served::Served;
use self::time::Time;
use super::happen::REPLACED;
use super::{World, name};
use crate::machine::Machine;

/// How long a quorum that is well may be without a leader that answers, in milliseconds, once the followers of a leader do not catch
/// up any more: a new leader may have to send hundreds of entries first, 8 in each message, over long links.
const LEADS_WITHIN: u64 = 20_000;
/// How long an entry of a leader may wait while a quorum is well, in milliseconds. The same holds.
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
pub(crate) const ENDS_LATE: &str = "a lease or a wait has not ended";
pub(crate) const LOG_FILLS_MEMORY: &str = "the log fills the memory";
pub(crate) const CONNECTS_ALL_THE_TIME: &str = "connects all the time";

/// What the laws of this module know of a run.
#[derive(Default)]
pub(super) struct Alive {
    pub(super) health: Health,
    /// The voters as the last leader knew them, and the sets of voters in the logs of those that run.
    voters: VoterSets,
    time: Time,
    served: Served,
    /// When a leader was last known to lead.
    led_at: u64,
    /// A leader, its term, and the fewest entries that its followers have lacked in it.
    fewest: Option<(NodeId, u64, u64)>,
    /// When that number last fell.
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
        self.look_at_voters();
        self.look_at_health();
        let leader = self.leader().map(|(leader, ..)| leader);
        self.take_pulse(leader);
        self.look_at_followers(leader);
        let quorum = self.alive.health.quorum(&self.alive.voters);
        self.look_at_served(quorum.as_ref());
        if let Some(quorum) = quorum {
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

    /// A change of members may be in the logs of some only, and decide all the same who can be elected.
    fn look_at_voters(&mut self) {
        let logs = self.voters.iter().filter_map(|id| self.machines.get(id)?.handle());
        let mut voters: VoterSets = logs.flat_map(|handle| handle.voters()).collect();
        voters.insert(self.voters.iter().copied().collect());
        if voters != self.alive.voters {
            self.alive.health.all_unwell(self.now);
            self.alive.voters = voters;
        }
    }

    /// Notes whether the followers that `leader` needs catch up.
    fn look_at_followers(&mut self, leader: Option<NodeId>) {
        let Some((leader, term, lacks)) = leader.and_then(|leader| self.lacks_of_followers(leader)) else {
            return;
        };
        let fewest = self.alive.fewest.filter(|it| (it.0, it.1) == (leader, term)).map(|it| it.2);
        if fewest.is_none_or(|fewest| lacks < fewest) {
            self.alive.fewest = Some((leader, term, lacks));
        }
        if fewest.is_some_and(|fewest| lacks < fewest) {
            self.alive.caught_up_at = self.now;
        }
    }

    /// A leader, its term, and how many entries the followers lack that it needs, if it knows.
    fn lacks_of_followers(&self, leader: NodeId) -> Option<(NodeId, u64, u64)> {
        let status = self.machines.get(&leader)?.status()?;
        let quorum = self.alive.health.quorum_with(leader, &self.alive.voters)?;
        let followers = quorum.nodes.iter().filter(|id| **id != leader);
        let lacks = followers.map(|id| status.members.get(id)?.lag_entries).sum::<Option<u64>>()?;
        Some((leader, status.term, lacks))
    }

    /// Learns what leaders have answered, and asks the leader again from time to time.
    fn take_pulse(&mut self, leader: Option<NodeId>) {
        let pulses = std::mem::take(
            &mut *self.alive.pulses.lock().expect("nothing panics while the pulses are locked"),
        );
        for Pulse { node, term, at_ms, due_ms } in pulses {
            self.alive.led_at = self.now;
            self.has_committed(term);
            let answer = self.answer_of(node, at_ms);
            let debt = self.alive.time.goes_on(answer, self.plan.slowest());
            let says = || format!("{} says it is {at_ms} ms; {}", name(node), self.alive.time.says());
            self.story.detail(self.now, says);
            if debt.is_some() {
                self.findings.push(format!("{TIME_LAGS}, though a leader commits: {}", says()));
            }
            if let Some(due_ms) = due_ms.filter(|due_ms| at_ms > due_ms + OVERDUE) {
                self.findings.push(format!("{ENDS_LATE} that was to end at {due_ms} ms: {}", says()));
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
            let bound = 4 * self.plan.snapshot_after_bytes.max(machine.store.snapshot_bytes()) + SLACK;
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
