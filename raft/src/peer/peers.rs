//! Calls to the other nodes.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{io, iter};

use openraft::async_runtime::watch::WatchReceiver;
use ringfence_lease::{Outcome, Request};
use ringfence_wire::{Key, Revision, Upgraded};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use uuid::Uuid;

use super::call::{CallError, CallLink, Pending};
use super::directory::{Directory, Target};
use super::known::Process;
use super::message::{Answer, Call, Order, Probed, ReadPoint};
use crate::applied::state_machine::Raft;
use crate::applied::witness::Difference;
use crate::consensus::{ELECTION_MS, NodeId, Vote};
use crate::gate::{Since, Withheld};
use crate::propose::asker::Asker;
use crate::unanswered::{MembersError, Unanswered};

/// How long a node may take to tell a [`Difference`].
const DIFFERENCE: Duration = Duration::from_secs(1);

/// How often a follower calls its leader.
const CALL_EVERY: Duration = Duration::from_millis(500);
/// How long that call may take, its connection included.
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// This node's connections for calls to the others.
pub(crate) struct Peers {
    pub(crate) directory: Arc<Directory>,
    since: Since,
    links: Mutex<BTreeMap<Target, CallLink>>,
    /// The node's own: a call from another runtime must not take its connection with it.
    runtime: Handle,
}

/// A node that may become a member. If it is none when this is dropped, its address and connections are forgotten.
pub(crate) struct Introduced<'a> {
    peers: &'a Peers,
    id: NodeId,
}

impl Introduced<'_> {
    /// The node is a member now, even if the membership that is known here does not name it yet.
    pub(crate) fn joined(self) {
        std::mem::forget(self);
    }
}

impl Drop for Introduced<'_> {
    fn drop(&mut self) {
        if self.peers.directory.member(self.id).is_none() {
            self.peers.links().retain(|target, _| target.to != self.id);
            self.peers.directory.forget(self.id);
        }
    }
}

impl Peers {
    /// To be called on the node's runtime.
    pub(crate) fn new(directory: Arc<Directory>, since: Since) -> Self {
        Self { directory, since, links: Mutex::default(), runtime: Handle::current() }
    }

    /// From now on the membership is what `raft` says.
    pub(crate) fn attach(self: &Arc<Self>, raft: &Raft) {
        self.directory.attach(raft);
        let mut changes = raft.server_metrics();
        let peers = Arc::downgrade(self);
        tokio::spawn(async move {
            while changes.changed().await.is_ok()
                && let Some(peers) = peers.upgrade()
            {
                peers.close_outdated_links();
            }
        });
    }

    /// Closes the links to incarnations that the membership does not name.
    fn close_outdated_links(&self) {
        let Some(membership) = self.directory.membership() else { return };
        self.directory.forget_others(&membership);
        self.links().retain(|target, _| {
            membership.get_node(&target.to).map(|member| member.incarnation) == target.incarnation
        });
    }

    /// As [`Directory::introduce`].
    pub(crate) fn introduce(&self, id: NodeId, address: &str) -> Result<Introduced<'_>, String> {
        self.directory.introduce(id, address)?;
        // What is connected now may be elsewhere.
        self.links().retain(|target, _| target.to != id);
        Ok(Introduced { peers: self, id })
    }

    /// The answer of `to`: of the member that the membership names now, or of the node that answers if it names none. The
    /// caller bounds the time, and learns nothing of a call that took longer.
    pub(crate) async fn call(&self, to: NodeId, call: Call) -> Result<Answer, CallError> {
        self.call_before(to, call, pending()).await
    }

    /// As [`Peers::call`]. When `end` comes before the answer, the call is taken back if it can be: *not sent* is certain then.
    async fn call_before(
        &self,
        to: NodeId,
        call: Call,
        end: impl Future<Output = io::Error>,
    ) -> Result<Answer, CallError> {
        let incarnation = self.directory.member(to).map(|member| member.incarnation);
        self.pending(to, incarnation, call)?.answer_before(end).await
    }

    /// The answer of this incarnation of `to`, and of no other; `None`: of whichever answers. The caller bounds the time.
    pub(super) async fn call_incarnation(
        &self,
        to: NodeId,
        incarnation: Option<Uuid>,
        call: Call,
    ) -> Result<Answer, CallError> {
        self.pending(to, incarnation, call)?.answer_before(pending()).await
    }

    fn pending(&self, to: NodeId, incarnation: Option<Uuid>, call: Call) -> Result<Pending, CallError> {
        if self.directory.has_lost(to, incarnation) {
            let lost = format!("node {to} lost what it had acknowledged");
            return Err(CallError::NotSent(io::Error::new(io::ErrorKind::PermissionDenied, lost)));
        }
        let target = Target { to, incarnation, channel: call.channel() };
        let start = || CallLink::start(Arc::clone(&self.directory), self.since, target, &self.runtime);
        self.links().entry(target).or_insert_with(start).send(call)
    }

    pub(super) fn links(&self) -> MutexGuard<'_, BTreeMap<Target, CallLink>> {
        self.links.lock().expect("no panic while the links are locked")
    }

    /// How many nodes this one knows anything of, and how many connections it has to them.
    #[cfg(test)]
    pub(crate) fn known(&self) -> (usize, usize) {
        (self.directory.known(), self.links().len())
    }

    async fn forward(&self, leader: NodeId, call: Call, deadline: Instant) -> Result<Answer, Unanswered> {
        answered(self.call_before(leader, call, passed(deadline)).await)
    }

    /// The outcomes of a request's commands from `leader`, unless `end` comes first. `rules` are those in use, as far as this
    /// node knows: they are asked for only if its program is too old for a command.
    pub(crate) async fn propose(
        &self,
        leader: NodeId,
        asker: Asker,
        request: &Request,
        rules: impl Fn() -> u8,
        end: impl Future<Output = io::Error>,
    ) -> Result<Vec<Outcome>, Unanswered> {
        let mut end = pin!(end);
        match self.call_before(leader, self.proposal(asker, request.clone()), end.as_mut()).await {
            Err(CallError::NotSent(error)) if error.kind() == io::ErrorKind::Unsupported => {
                self.propose_rest(leader, asker, request.clone(), rules(), end).await
            }
            called => outcomes(answered(called)?, request.commands.len()),
        }
    }

    /// As [`Peers::propose`], without the commands that the program of `leader` cannot read.
    async fn propose_rest(
        &self,
        leader: NodeId,
        asker: Asker,
        mut request: Request,
        rules: u8,
        end: impl Future<Output = io::Error>,
    ) -> Result<Vec<Outcome>, Unanswered> {
        let member = self.directory.member(leader).ok_or(Unanswered::Unavailable)?;
        let program = self.directory.program_of(leader, member.incarnation);
        let known = program.map(|program| program.rules.newest);
        // A program that does not support the rules in use stops, and another node leads.
        let known = known.filter(|known| *known >= rules).ok_or(Unanswered::Unavailable)?;
        let withheld = Withheld::take(&mut request, known, rules, self.since);
        if request.commands.is_empty() {
            return Ok(withheld.refuse(iter::empty()));
        }
        let count = request.commands.len();
        let answer = answered(self.call_before(leader, self.proposal(asker, request), end).await)?;
        Ok(withheld.refuse(outcomes(answer, count)?.into_iter()))
    }

    fn proposal(&self, asker: Asker, request: Request) -> Call {
        let supports = self.directory.program.rules.newest;
        Call::ProposeOf { asker: asker.number(), supports, request }
    }

    /// Has `leader` carry out `order`; `Ok(Err(_))` is the reason why it refuses.
    pub(crate) async fn order(
        &self,
        leader: NodeId,
        order: Order,
        deadline: Instant,
    ) -> Result<Result<(), String>, Unanswered> {
        match self.forward(leader, Call::Order(order), deadline).await? {
            Answer::Ordered => Ok(Ok(())),
            Answer::Refused { reason } => Ok(Err(reason)),
            _ => Err(Unanswered::Indeterminate),
        }
    }

    /// Has `leader` raise the rules; the error is the reason why it refuses, or why that is not known.
    pub(crate) async fn upgrade(
        &self,
        leader: NodeId,
        to: Option<u8>,
        check: bool,
        deadline: Instant,
    ) -> Result<Upgraded, MembersError> {
        match self.call_before(leader, Call::Upgrade { to, check }, passed(deadline)).await {
            Ok(Answer::Upgraded(upgraded)) => Ok(upgraded),
            Ok(Answer::Refused { reason }) => Err(MembersError::Refused(reason)),
            Err(CallError::NotSent(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Err(MembersError::Refused(format!(
                    "node {leader}, which leads, runs a program that cannot raise the rules: upgrade it first"
                )))
            }
            Ok(Answer::NotDone) | Err(CallError::NotSent(_)) => Err(Unanswered::Unavailable.into()),
            _ if check => Err(Unanswered::Unavailable.into()),
            _ => Err(Unanswered::Indeterminate.into()),
        }
    }

    /// What `id` says that the entries did which it applied after the first `after`, up to the first `upto`.
    pub(crate) async fn difference(&self, id: NodeId, after: u64, upto: u64) -> Option<Difference> {
        match timeout(DIFFERENCE, self.call(id, Call::Difference { after, upto })).await {
            Ok(Ok(Answer::Difference(difference))) => difference,
            _ => None,
        }
    }

    /// What `id` says of itself. The error says why no connection was made; of any other failure it says nothing.
    pub(crate) async fn probe(&self, id: NodeId, within: Duration) -> io::Result<Probed> {
        match timeout(within, self.call(id, Call::Probe)).await {
            Ok(Ok(Answer::Probed(probed))) => Ok(probed),
            Ok(Err(CallError::NotSent(error))) => Err(error),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Has `id` write down that it belongs to `cluster`, if it is still the incarnation that a probe has found. The caller bounds
    /// the time.
    pub(crate) async fn adopt(
        &self,
        id: NodeId,
        incarnation: Uuid,
        cluster: Uuid,
    ) -> Result<Answer, CallError> {
        self.call_incarnation(id, Some(incarnation), Call::Adopt { cluster }).await
    }

    /// Whether this incarnation of `voter` says that `vote`, a leader's, is still its own.
    pub(crate) async fn confirm(&self, voter: NodeId, incarnation: Uuid, vote: Vote) -> bool {
        let call = Call::Confirm { vote: vote.into() };
        matches!(self.call_incarnation(voter, Some(incarnation), call).await, Ok(Answer::Confirmed(true)))
    }

    /// Calls the leader that this node follows, again and again: see [`callable`](super::callable). Never returns.
    pub(crate) async fn call_leader(self: Arc<Self>) {
        let mut ticks = interval(CALL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (directory, mut turn) = (&self.directory, 0_usize);
        loop {
            ticks.tick().await;
            let followed = directory.leader_within(Duration::from_millis(ELECTION_MS.end));
            // A learner that has moved, and is not called, has no other reason to call anybody.
            let Some(process) = followed.or_else(|| self.next_member(&mut turn)) else { continue };
            if matches!(timeout(CALL_WITHIN, self.is_answered(process)).await, Ok(true)) && followed.is_some()
            {
                directory.callable.answered(process);
            }
        }
    }

    /// Whether a member answers anything. The caller bounds the time. Programs of all versions answer.
    async fn is_answered(&self, (id, incarnation): Process) -> bool {
        // To confirm no leader's vote takes no look at Raft, which may wait for its disk.
        let nobodys = Vote::new(0, self.directory.identity.node_id);
        let call = Call::Confirm { vote: nobodys.into() };
        self.call_incarnation(id, Some(incarnation), call).await.is_ok()
    }

    /// If this node has moved: another member, each in its turn.
    fn next_member(&self, turn: &mut usize) -> Option<Process> {
        let membership = self.directory.membership().filter(|_| self.directory.elsewhere().is_some())?;
        let own = self.directory.identity.node_id;
        let others: Vec<_> = membership.nodes().filter(|(id, _)| **id != own).collect();
        *turn = turn.wrapping_add(1);
        let (id, member) = others.get(turn.checked_rem(others.len())?)?;
        Some((**id, member.incarnation))
    }

    /// Whether `leader` says that its mirror shows `keys` at `revision` or later. The caller bounds the time.
    pub(crate) async fn mirror_has(&self, leader: NodeId, keys: Vec<Key>, revision: Revision) -> bool {
        matches!(self.call(leader, Call::MirrorHas { keys, revision }).await, Ok(Answer::MirrorHas(true)))
    }

    /// A linearizable read point from `leader`, if it gives one.
    pub(crate) async fn read_index(&self, leader: NodeId, deadline: Instant) -> Option<ReadPoint> {
        match self.forward(leader, Call::ReadIndex, deadline).await {
            Ok(Answer::ReadPoint { last, now_ms }) => Some(ReadPoint { log_id: last.into(), now_ms }),
            _ => None,
        }
    }
}

/// The end of a call that has time until `deadline`.
pub(crate) async fn passed(deadline: Instant) -> io::Error {
    sleep_until(deadline).await;
    io::ErrorKind::TimedOut.into()
}

fn answered(called: Result<Answer, CallError>) -> Result<Answer, Unanswered> {
    match called {
        Ok(Answer::NotDone) | Err(CallError::NotSent(_)) => Err(Unanswered::Unavailable),
        Ok(Answer::Full) | Err(CallError::Full) => Err(Unanswered::Full),
        Ok(Answer::Unknown) | Err(CallError::Unknown(_)) => Err(Unanswered::Indeterminate),
        Ok(answer) => Ok(answer),
    }
}

/// Those of `count` commands.
fn outcomes(answer: Answer, count: usize) -> Result<Vec<Outcome>, Unanswered> {
    match answer {
        Answer::Outcomes(outcomes) if outcomes.len() == count => Ok(outcomes),
        _ => Err(Unanswered::Indeterminate),
    }
}
