//! For how long a member has not answered.
//!
//! Only answers to what this node sent count: they show that this node reaches the member, and that its Raft thread runs. What a
//! member sends of its own accord shows neither. A leader is answered with every heartbeat. A node asks whoever it has not
//! heard otherwise, so that each knows of each, whoever leads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use super::directory::{Directory, Target};
use super::known::Process;
use super::message::Call;
use super::peers::Peers;
use crate::consensus::{NodeId, Vote};

/// A member that has not answered for so long is asked, and how often this is looked at.
const ASK: Duration = Duration::from_secs(1);
/// A member that does not answer is asked more and more rarely: whoever refuses this node logs each call. This is the longest pause.
const MOST_PAUSE: Duration = Duration::from_secs(8);

impl Directory {
    /// For how long this member has not answered, or has not since it was asked first; `None` before that.
    pub(crate) fn silent_for(&self, (id, incarnation): Process) -> Option<Duration> {
        let answered = self.with_known(id, |known| known.answered);
        answered.filter(|(it, _)| *it == incarnation).map(|(_, at)| at.elapsed())
    }

    /// Notes that the other side has answered on a connection to `target`.
    pub(super) fn note_answer(&self, Target { to, incarnation, .. }: Target) {
        let Some(incarnation) = incarnation else { return };
        self.with_known(to, |known| known.answered = Some((incarnation, Instant::now())));
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
        let answers = self.answers(member).await;
        self.directory.note_asked(member);
        if !answers {
            let silent_for = self.directory.silent_for(member).unwrap_or_default();
            sleep(MOST_PAUSE.min(silent_for / 4)).await;
        }
        member
    }

    /// Whether a member answers anything. The caller bounds the time. Programs of all versions answer.
    pub(super) async fn answers(&self, (id, incarnation): Process) -> bool {
        // To confirm no leader's vote takes no look at Raft, which may wait for its disk.
        let nobodys = Vote::new(0, self.directory.identity.node_id);
        let call = Call::Confirm { vote: nobodys.into() };
        self.call_incarnation(id, Some(incarnation), call).await.is_ok()
    }

    fn others(&self) -> Vec<(NodeId, Uuid)> {
        let Some(membership) = self.directory.membership() else { return Vec::new() };
        let others = membership.nodes().filter(|(id, _)| **id != self.directory.identity.node_id);
        others.map(|(id, member)| (*id, member.incarnation)).collect()
    }
}
