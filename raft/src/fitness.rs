//! Whether this node is fit to lead.
//!
//! A leader leads only while it gets on: what it takes is soon on its disk, committed and applied. Others follow it for its
//! heartbeats, which are small, have connections of their own, and need no disk of the leader. So a leader can keep its
//! followers and commit nothing: what it sends them is lost beyond some size, or a connection is stuck. If its own disk hangs,
//! the others commit without it, and each entry that they commit waits in its memory. Or no majority can open
//! a connection to it: then it commits, and gets no request. In all these cases it hands over, and is silent from then on, so that the
//! others elect a leader also if its successor lacks what is stuck, and was not acknowledged to anybody.
//!
//! It does so only if the others can do without it. They are a majority by themselves: its log may be longer than theirs, so
//! it might not vote for any of them. And they run: they acknowledged heartbeats all the while. Whether they could commit more, it
//! cannot know. If all disks are slow, a leader with another disk is no better.
//!
//! So a node that gave up the leadership lets others campaign first. If the next leader commits nothing either, the fault is not
//! in one node, and giving up does not help. So each time, a node waits twice as long before it gives up again, up to a bound:
//! changes of the leader cost some requests, but take with them the entry that may be what is stuck.
//!
//! From the hand-over on this node does not lead in that term: it forwards requests to the new leader. It does not
//! wait for its own Raft to learn of that leader: Raft must first write the new term, and may have to wait for its disk. While
//! its disk hangs, a node does not campaign, leader or not. Meanwhile
//! [`LogStore::is_full`](crate::storage::log_store::LogStore::is_full) bounds what it takes in.
//!
//! Leader or not, a node that does not keep up with a leader, or whose disk hangs, is cut off: it may learn late of grants. Those
//! who wait for one here are told, and ask another node.
//!
//! A disk may also fail while nobody waits for it. An error closes the log. Raft learns of it with its next write; a node with
//! nothing to write would go on, and fail the next request. So the node ends at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::consensus::{ELECTION_MS, LogId, NodeId};
use crate::peer::UNANSWERED;
use crate::replica::{HEARD, Replica, is_majority};
use crate::storage::log_store::HANGS;

/// How often all this is checked.
const LOOK: Duration = Duration::from_millis(100);
/// For how long a leader that serves nobody waits before it gives up the leadership for the first time.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long at most.
const MOST_PATIENCE: Duration = Duration::from_secs(16);
/// A node that has not given up the leadership for so long does so as readily as at first.
const FORGIVEN: Duration = Duration::from_secs(600);
/// For how long a node that gave up the leadership does not campaign: a few elections.
const STAND_BACK: Duration = Duration::from_millis(5 * ELECTION_MS.end);
/// How long the first hand-over may take before the next attempt. Each may take twice as long as the one before, up to
/// [`MOST_PATIENCE`].
const HAND_OVER: Duration = Duration::from_millis(2 * ELECTION_MS.end);
/// A node that has not kept up with a leader for so long is cut off. An election usually takes less.
const CUT_OFF: Duration = Duration::from_secs(3);

/// Watches this node; returns when Raft has stopped, or the log is closed, which is a `fault`.
pub(crate) async fn watch(shared: Arc<Replica>, fault: watch::Sender<Option<String>>) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut hangs, mut campaigns) = (false, true);
    let mut leadership = Leadership {
        idleness: Idleness::default(),
        uncallable: Idleness::default(),
        patience: PATIENCE,
        given_up: None,
        asked: Asked::first(Instant::now()),
    };
    let mut pace = Pace { kept_at: Instant::now(), committed: None };
    loop {
        ticks.tick().await;
        if let Some(error) = shared.log.failure() {
            fault.send_replace(Some(error));
            return;
        }
        let flushing = shared.log.flushing();
        if hangs != (flushing > HANGS) {
            hangs = !hangs;
            match hangs {
                true => tracing::warn!("the disk hangs: a flush of the log has taken {flushing:?} so far"),
                false => tracing::info!("the disk works again: the flush of the log has ended"),
            }
        }
        if leadership.look(&shared).await.is_none() {
            return;
        }
        let is_cut_off = flushing > HANGS || pace.behind(&shared) > CUT_OFF;
        shared.cut_off.send_if_modified(|cut_off| std::mem::replace(cut_off, is_cut_off) != is_cut_off);
        if campaigns != (!hangs && !leadership.stands_back()) {
            campaigns = !campaigns;
            shared.raft.runtime_config().elect(campaigns);
        }
    }
}

/// How this node leads, and when it gave that up.
struct Leadership {
    idleness: Idleness,
    uncallable: Idleness,
    /// How long it may be idle, or uncallable.
    patience: Duration,
    given_up: Option<Instant>,
    asked: Asked,
}

/// When a node that gave up the leadership last asked another one to take over, and how long that may take.
struct Asked {
    at: Instant,
    within: Duration,
}

impl Asked {
    /// The first time, at `at`.
    fn first(at: Instant) -> Self {
        Self { at, within: HAND_OVER }
    }

    /// The next time, if that is due at `now`: the others may have elected a leader that this node does not hear.
    fn next(&self, now: Instant) -> Option<Self> {
        let is_due = now - self.at >= self.within;
        is_due.then(|| Self { at: now, within: MOST_PATIENCE.min(2 * self.within) })
    }

    /// Whether it is the second time. That is logged, and the later ones would say the same.
    fn is_second(&self) -> bool {
        self.within == 2 * HAND_OVER
    }
}

impl Leadership {
    /// Gives the leadership up if that is due, and goes on to hand it over until another node leads. `None` when Raft has
    /// stopped.
    async fn look(&mut self, shared: &Replica) -> Option<()> {
        let now = Instant::now();
        let idle = self.idleness.look(shared.waits_for_itself(), now);
        let is_uncallable = shared.is_uncallable();
        let said = self.uncallable.look(is_uncallable.then_some(None), now);
        // They say it after that.
        let uncallable = if is_uncallable { UNANSWERED + said } else { Duration::ZERO };
        let Some(term) = shared.leads_in() else { return Some(()) };
        let Some(to) = shared.successor().or(shared.handed_to()) else { return Some(()) };
        if !shared.given_up.is(term) {
            if !is_within(self.given_up, FORGIVEN) {
                self.patience = PATIENCE;
            }
            if idle.max(uncallable) < self.patience {
                return Some(());
            }
            let why = match idle < uncallable {
                false => format!("it has written or applied nothing for {idle:?}, and the others work"),
                true => format!(
                    "for {uncallable:?} so many have said that they cannot open or use a connection to it that the rest is no \
                     majority, and the others work. Look at the firewall for its peer port"
                ),
            };
            tracing::warn!(to, "this leader gives up: {why}");
            self.given_up = Some(Instant::now());
            self.patience = MOST_PATIENCE.min(2 * self.patience);
            self.asked = Asked::first(now);
        } else {
            let Some(asked) = self.asked.next(now) else { return Some(()) };
            if asked.is_second() {
                tracing::warn!(
                    to,
                    "no other node took over the leadership in time, as far as this node knows: it asks again, and does not log that \
                     again"
                );
            }
            self.asked = asked;
        }
        shared.given_up.set(term, to);
        shared.leading.end();
        shared.raft.trigger().transfer_leader(to).await.ok()
    }

    /// Whether it lets others campaign first.
    fn stands_back(&self) -> bool {
        is_within(self.given_up, STAND_BACK)
    }
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// Since when this node has led, and got on with nothing, for no reason but itself; or could not be called, with nothing reached.
#[derive(Default)]
struct Idleness {
    reached: Option<LogId>,
    since: Option<Instant>,
}

impl Idleness {
    /// How long it has lasted, as far as it was looked at. `waits` is what [`Replica::waits_for_itself`] says at `now`.
    fn look(&mut self, waits: Option<Option<LogId>>, now: Instant) -> Duration {
        match waits {
            Some(reached) if reached == self.reached => now - *self.since.get_or_insert(now),
            waits => {
                *self = Self { reached: waits.flatten(), since: waits.map(|_| now) };
                Duration::ZERO
            }
        }
    }
}

/// How this node keeps up with the leader that it follows, or is.
struct Pace {
    kept_at: Instant,
    /// What it knew to be committed then.
    committed: Option<LogId>,
}

impl Pace {
    /// For how long it has not kept up. It keeps up when it has applied what it knew to be committed, and learns of more: while
    /// anything is due, a leader that commits logs the time. To hear a leader is no sign: it may have been deposed.
    fn behind(&mut self, shared: &Replica) -> Duration {
        // A leader that has handed over may never learn of the next one.
        let has_leader = shared.handed_to().is_none() && shared.leader().is_some();
        let (applied, committed) =
            shared.metrics(|metrics| (metrics.last_applied, metrics.cluster_committed));
        let is_idle = || shared.applied.lock().table.next_due_ms().is_none();
        if has_leader && applied >= self.committed && (committed > self.committed || is_idle()) {
            *self = Self { kept_at: Instant::now(), committed };
        }
        self.kept_at.elapsed()
    }
}

impl Replica {
    /// If this node leads, has entries to write or to apply, and the other voters work and are a majority by themselves: the
    /// last entry that is on its disk and applied.
    fn waits_for_itself(&self) -> Option<Option<LogId>> {
        let mut others = self.heard(HEARD);
        others.remove(&self.id);
        self.metrics(|metrics| {
            // The others commit without this disk, and what they commit is applied here.
            let written = metrics.replication.as_ref().and_then(|matched| matched.get(&self.id).copied());
            let reached = written.map_or(metrics.last_applied, |written| written.min(metrics.last_applied));
            let waits = metrics.last_log_index > reached.map(|id| id.index());
            let can_replace = |voters: &BTreeSet<NodeId>| is_majority(&others, voters);
            let membership = metrics.membership_config.membership();
            let blames_itself = metrics.state == ServerState::Leader
                && waits
                && membership.get_joint_config().iter().all(can_replace);
            blames_itself.then_some(reached)
        })
    }

    /// Whether this node leads, and no majority can call it: the followers that say so are left out. Only if the other voters work and are a
    /// majority by themselves; otherwise they can do nothing better without it.
    pub(crate) fn is_uncallable(&self) -> bool {
        let mut heard = self.heard(HEARD);
        self.metrics(|metrics| {
            let membership = metrics.membership_config.membership();
            let calls = |id: &NodeId| {
                let incarnation = membership.get_node(id).map(|member| member.incarnation);
                incarnation.is_none_or(|it| !self.peers.directory.callable.is_uncallable_for((*id, it)))
            };
            let callers: BTreeSet<_> = heard.iter().copied().filter(calls).collect();
            heard.remove(&self.id);
            let sets = membership.get_joint_config();
            metrics.state == ServerState::Leader
                && sets.iter().all(|voters| is_majority(&heard, voters))
                && !sets.iter().all(|voters| is_majority(&callers, voters))
        })
    }
}

#[cfg(test)]
mod tests;
