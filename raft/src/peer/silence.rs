//! For how long a member has not answered.
//!
//! Only answers count that the Raft of the member has given to what this node sent. They show that this node reaches the member, that
//! its Raft thread runs, that Raft takes messages in their turn, and that no flush of its log had taken longer than
//! [`HANGS`](crate::storage::log_store::HANGS) then. A disk that nobody writes to is not seen to hang. What a member sends of its own
//! accord, and what it answers from memory, shows less. A leader is answered with every heartbeat. A node asks whoever it has not
//! heard otherwise, so that each knows of each, whoever leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use super::directory::Directory;
use super::known::Process;
use super::message::{Answer, Call};
use super::peers::Peers;
use crate::consensus::{NodeId, Vote};

/// A member that has not answered for so long is asked, and how often this is looked at.
const ASK: Duration = Duration::from_secs(1);
/// A member that does not answer is asked more and more rarely: whoever refuses this node logs each call. This is the longest pause.
const MOST_PAUSE: Duration = Duration::from_secs(8);
/// The term of no leader: Raft's first one has term 1. A node that is asked about it says whether it works.
pub(super) const NO_TERM: u64 = 0;

impl Directory {
    /// For how long this member has not answered, or has not since it was asked first; `None` before that.
    pub(crate) fn silent_for(&self, (id, incarnation): Process) -> Option<Duration> {
        let answered = self.with_known(id, |known| known.answered);
        answered.filter(|(it, _)| *it == incarnation).map(|(_, at)| at.elapsed())
    }

    /// Notes that the Raft of this member has answered.
    pub(super) fn note_answer(&self, (id, incarnation): Process) {
        self.with_known(id, |known| known.answered = Some((incarnation, Instant::now())));
    }

    /// Notes that this member was asked, and has not answered yet.
    fn note_asked(&self, (id, incarnation): Process) {
        self.with_known(id, |known| {
            if known.answered.is_none_or(|(it, _)| it != incarnation) {
                known.answered = Some((incarnation, Instant::now()));
            }
        });
    }
}

impl Peers {
    /// Asks each member that is silent, once at a time. Never returns.
    pub(crate) async fn ask_the_silent(self: Arc<Self>) {
        let mut ticks = interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut asked, mut waiting) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            tokio::select! {
                biased;
                Some(answered) = asked.next() => {
                    waiting.remove(&answered);
                }
                _ = ticks.tick() => {
                    for member in self.others() {
                        let is_silent = self.directory.silent_for(member).is_none_or(|time| time >= ASK);
                        if is_silent && waiting.insert(member) {
                            asked.push(self.ask(member));
                        }
                    }
                }
            }
        }
    }

    /// Asks a member for as long as the connection lasts. Returns when it may be asked again.
    async fn ask(&self, member: Process) -> Process {
        self.directory.note_asked(member);
        if self.works(member).await {
            self.directory.note_answer(member);
        } else {
            let silent_for = self.directory.silent_for(member).unwrap_or_default();
            sleep(MOST_PAUSE.min(silent_for / 4)).await;
        }
        member
    }

    /// Whether the Raft of a member answers. Programs of all versions answer; older ones also while their disk hangs.
    async fn works(&self, (id, incarnation): Process) -> bool {
        // The vote of a leader that there never was: only Raft can tell that it is not its own.
        let nobodys = Vote::new_committed(NO_TERM, self.directory.identity.node_id);
        let call = Call::Confirm { vote: nobodys.into() };
        matches!(self.call_incarnation(id, Some(incarnation), call).await, Ok(Answer::Confirmed(_)))
    }

    fn others(&self) -> Vec<(NodeId, Uuid)> {
        let Some(membership) = self.directory.membership() else { return Vec::new() };
        let others = membership.nodes().filter(|(id, _)| **id != self.directory.identity.node_id);
        others.map(|(id, member)| (*id, member.incarnation)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::tests::{Cluster, grant, until};

    /// Whoever asked was answered from memory.
    #[tokio::test]
    async fn a_member_whose_disk_hangs_is_silent_to_all_until_it_goes_on() {
        let cluster = Box::pin(Cluster::start(3)).await;
        grant(&cluster.handle(1), 1).await;
        let leader = cluster.handle(1).status().leader.unwrap();
        let hung = leader % 3 + 1;
        let go_on = cluster.handle(hung).shared.log.hang();
        let is_silent = |at: &NodeId| cluster.handle(*at).status().members[&hung].silence().is_some();
        let others: Vec<_> = (1..=3).filter(|id| *id != hung).collect();
        until("it is silent to both", async || others.iter().all(is_silent)).await;
        drop(go_on);
        until("it answers both", async || !others.iter().any(is_silent)).await;
    }

    /// It leads on: without an entry nobody needs its disk.
    #[tokio::test]
    async fn an_idle_leader_whose_disk_hangs_is_silent_to_all_and_another_leads_after_the_next_entry() {
        let cluster = Box::pin(Cluster::start(3)).await;
        let hung = cluster.handle(1);
        until("it leads, and has applied all", async || {
            let status = hung.status();
            let is_idle = status.applied_index == status.last_log_index && hung.view(|table| table.started());
            is_idle && status.leader == Some(1)
        })
        .await;
        let (before, go_on) = (hung.status().last_log_index, hung.shared.log.hang());
        let is_silent = |at: u64| cluster.handle(at).status().members[&1].silence().is_some();
        until("it is silent to both", async || is_silent(2) && is_silent(3)).await;
        assert!(hung.disk_hangs() && hung.is_cut_off());
        // A machine that stands still deposes leaders, too.
        if hung.status().leader == Some(1) {
            assert_eq!(hung.status().last_log_index, before);
        }
        grant(&cluster.handle(2), 1).await;
        until("another leads", async || cluster.handle(2).status().leader.is_some_and(|leader| leader != 1))
            .await;
        grant(&cluster.handle(3), 2).await;
        drop(go_on);
    }
}
