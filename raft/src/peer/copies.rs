//! Two processes with one data directory.
//!
//! A data directory that is copied, or turned back to an earlier state, has the incarnation of a member, and has forgotten what
//! the member voted and acknowledged since. Three rules keep it out, as far as anybody is left who knows better:
//!
//! 1. A process is refused if it does not come after the newest [`Start`] of its directory that this node has met.
//! 2. A process that this node has not met is refused unless it answers at the member's address, or, where that leads to nobody, at one
//!    that counts then ([`addresses`](super::addresses)). If another one answers there, the directory of a running node was copied. If
//!    nobody does, the member may stand still for as long as it likes: who calls from elsewhere is not taken for it. Builds from before
//!    the starts are let in unasked.
//! 3. A follower that lacks an entry which it acknowledged to this leader is refused: see `append`.
//!
//! A process that is refused for this where it calls a member records it in its data directory, and stops: it must not go on to
//! where nobody knows better. A caller also says which start of the other side it has met; because anybody can say that, the
//! other side then calls it. If nobody knows better, entries may be lost; each new leader raises the revision above all tokens
//! that may have been granted then (`time::wall`). A node that still has such an entry, knows that it was committed, and is sent
//! another one, stops rather than delete it.
//!
//! What they miss: a directory that was turned back to a state of the very process that was met last, of a node that led
//! itself, or whose leader leads no longer. It comes after that start (1), and the next leader never had its acknowledgements (3). It
//! does no harm once a leader that was elected without its vote has committed an entry: from then on, a majority without it has all
//! that was committed. It does harm if it votes before that, for a node that lacks what it has forgotten. Then an acknowledged grant
//! is lost, and nobody stops unless a node is left that knows that it was committed. If it votes again in a term, two nodes may have
//! led in that, with other entries under the same ids: then a minority stops that did not do the same (`divergence`).

use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::addresses::Found;
use super::directory::{Directory, Target, refusal};
use super::handshake::{Channel, Hello, Processes};
use super::known::{Process, Run, Sent};
use crate::consensus::{LogId, NodeId, as_of};
use crate::measure::COPIES_REFUSED;
use crate::storage::starts::{Start, Starts};

/// How long a member's address may take to answer.
const ASK: Duration = Duration::from_secs(2);
/// For how long it is told that a process was refused beside one of the same id that is well.
const TOLD: Duration = Duration::from_secs(60);

/// The reason why a process must not go on, as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Copied(String);

/// Whether `error` says that a process runs with a copy of a data directory.
pub(super) fn is_copy(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Copied>())
}

/// The error that a process runs with a copy of a data directory.
pub(super) fn copied(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, Copied(reason))
}

impl Directory {
    /// Why this process must not go on, once another node has said so.
    pub(crate) fn condemned(&self) -> watch::Receiver<Option<String>> {
        self.condemned.subscribe()
    }

    /// The newest start of this data directory of `id` that this node has met; one that no process comes after if the directory
    /// has lost something.
    pub(super) fn met(&self, id: NodeId, incarnation: Option<Uuid>) -> Option<Start> {
        self.with_known(id, |known| {
            let is_lost = known.lost.as_ref().is_some_and(|(it, _)| Some(*it) == incarnation);
            let met = known.met.filter(|(it, _)| Some(*it) == incarnation).map(|(_, start)| start);
            if is_lost { Some(Start::NEVER) } else { met }
        })
    }

    /// Whether this data directory of `id` has lost what it had acknowledged.
    pub(super) fn has_lost(&self, id: NodeId, incarnation: Option<Uuid>) -> bool {
        self.met(id, incarnation) == Some(Start::NEVER)
    }

    /// An error if the caller `by` has met a start of this node's data directory that this process does not come after. Anybody
    /// can say so. What the member answers at its own address is what counts.
    pub(super) async fn check_own(&self, by: Process, met: Option<Start>) -> io::Result<()> {
        if met.is_none_or(|met| self.identity.starts.include(met)) {
            return Ok(());
        }
        let (to, incarnation) = by;
        let target = Target { to, incarnation: Some(incarnation), channel: Channel::Votes };
        if let Some(address) = self.address(to) {
            match timeout(ASK, self.greet_at(target, &address)).await {
                Ok(Err(error)) if is_copy(&error) => self.condemn(to, &error.to_string()),
                _ => {}
            }
        }
        Err(refusal(format!("node {} runs with a copy of its data directory", self.identity.node_id)))
    }

    /// Another node refuses this process as a copy.
    pub(super) fn condemn(&self, by: NodeId, reason: &str) {
        self.condemned.send_replace(Some(format!("node {by} refuses this node: {reason}")));
    }

    /// An error if the process with these starts is known not to be the newest of its data directory.
    pub(super) fn check_starts(&self, process: Process, starts: &Starts) -> io::Result<()> {
        let (id, incarnation) = process;
        let lost = self.with_known(id, |known| known.lost.clone());
        if let Some((_, what)) = lost.filter(|(it, _)| *it == incarnation) {
            return Err(Self::copied(what));
        }
        let (Some(met), Some(newest)) = (self.met(id, Some(incarnation)), starts.newest()) else {
            return Ok(());
        };
        if !starts.include(met) {
            return Err(Self::copied(older(id, newest, met)));
        }
        if met == newest {
            self.with_known(id, |known| known.heard = Some(Instant::now()));
        }
        Ok(())
    }

    /// As [`check_starts`](Self::check_starts) for a caller; and an error unless it answers at the member's address. Afterwards the
    /// caller was met.
    pub(super) async fn check_alone(&self, hello: &Hello, processes: &Processes) -> io::Result<()> {
        let (caller, to) = ((hello.from, hello.incarnation), hello.from);
        self.check_starts(caller, &processes.starts)?;
        let newest = processes.starts.newest();
        let Some(newest) = newest.filter(|newest| !self.has_met(caller, *newest)) else { return Ok(()) };
        let recorded = self.recorded(to);
        let before = match &recorded {
            Some(at) => Some(self.ask(caller, at).await),
            None => None,
        };
        if let Some(Found::Member(found)) = &before {
            if !is_start(found, newest) {
                return Err(Self::copied(format!(
                    "another process with the data directory of node {to} answers at its address: this one is a copy. Remove the \
                     node from the cluster, empty both data directories, and add it again"
                )));
            }
        } else if let Err(error) = self.find(hello, processes, newest, before).await {
            self.note_claim(caller, newest, &processes.places);
            return Err(error);
        }
        // Another process may have been met meanwhile.
        self.check_starts(caller, &processes.starts)?;
        self.meet(caller, newest);
        Ok(())
    }

    /// Looks for a caller that did not answer where the membership has it: `before` says what did, if it has it anywhere.
    async fn find(
        &self,
        hello: &Hello,
        processes: &Processes,
        newest: Start,
        before: Option<Found>,
    ) -> io::Result<()> {
        let (caller, to, own) = ((hello.from, hello.incarnation), hello.from, &processes.places.own);
        let is_recorded = before.is_some();
        let mut others = Vec::new();
        if !is_recorded || !self.has_leader_besides(caller) {
            others = self.told(to);
            // What the caller says counts where this node knows less than the caller: it joins, or it was away.
            let is_away = || hello.member_as_of > self.membership().and_then(|it| as_of(&it));
            if !is_recorded || matches!(before, Some(Found::Gone(_))) && is_away() {
                others.extend(Some(own.clone()).filter(|own| !own.is_empty()));
            }
        }
        if !is_recorded && others.is_empty() {
            return Ok(());
        }
        let mut why = before.and_then(Found::error).map(|error| error.to_string());
        for at in others {
            match self.ask(caller, &at).await {
                Found::Member(found) if is_start(&found, newest) => {
                    self.note_answered(to, at);
                    return Ok(());
                }
                Found::Member(_) => why = Some(format!("{at}: another process answers")),
                Found::Gone(error) | Found::Silent(error) => why = why.or(Some(error.to_string())),
            }
        }
        let (this, why) = (self.identity.node_id, why.unwrap_or_default());
        let own = if own.is_empty() { "HOST:PORT" } else { own };
        Err(refusal(format!(
            "node {this} does not let node {to} in, because it cannot call it where the cluster has it: {why}. If node {to} has moved, \
             and the cluster does not find that out by itself, run `ringfence cluster add {to} {own}`. If the others have it there \
             already, list that in --peers of node {this}, and restart it"
        )))
    }

    /// The process with this start is the newest.
    pub(super) fn meet(&self, (id, incarnation): Process, newest: Start) {
        if self.is_named(id) {
            self.with_known(id, |known| {
                (known.met, known.heard) = (Some((incarnation, newest)), Some(Instant::now()))
            });
        }
    }

    /// The error that `id` is refused with. A repeated reason has a kind of its own, which is not logged as a warning.
    pub(super) fn note_refused(&self, id: NodeId, error: io::Error) -> io::Error {
        let reason = error.to_string();
        let is_repeated = self.with_known(id, |known| {
            let before = known.refused.replace((reason.clone(), Instant::now()));
            before.is_some_and(|(before, _)| before == reason)
        });
        if is_repeated { io::Error::new(io::ErrorKind::AlreadyExists, error) } else { error }
    }

    /// Why this node refused a process of `id` when it called last; `None` if one was welcome since, or if the member was heard after
    /// that, and the other has not called again for a while.
    pub(crate) fn refused(&self, id: NodeId) -> Option<String> {
        self.with_known(id, |known| {
            let (reason, at) = known.refused.as_ref()?;
            let is_over = at.elapsed() > TOLD && known.heard.is_some_and(|heard| heard > *at);
            (!is_over).then(|| reason.clone())
        })
    }

    fn copied(reason: String) -> io::Error {
        COPIES_REFUSED.get().increment(1);
        copied(reason)
    }

    fn has_met(&self, (id, incarnation): Process, start: Start) -> bool {
        self.with_known(id, |known| known.met == Some((incarnation, start)))
    }

    /// The leader lacks `own`, which was committed: a majority has lost what it acknowledged. This node must not go on, because it
    /// would have to delete what others were told.
    pub(super) fn has_forgotten(&self, leader: NodeId, own: LogId) -> io::Error {
        let why = format!(
            "node {leader}, which leads, lacks entry {}, which was committed: a majority of the nodes has lost what it acknowledged, \
             and this node still has it. See `Copies of a data directory` in docs/operations.md",
            own.index()
        );
        self.condemned.send_replace(Some(why.clone()));
        io::Error::new(io::ErrorKind::InvalidData, why)
    }

    /// Notes that this node, as the leader of `term`, sends a follower the entries `run`.
    pub(super) fn note_sent(&self, (id, to): Process, term: u64, run: Run) {
        self.with_known(id, |known| {
            known.sent = Some(Sent::after(known.sent.take(), to, term, run));
        });
    }

    /// Notes that a follower has installed a snapshot of this node as the leader of `term`. It says so once that is on disk, and keeps no
    /// state from before it that it could fall back to.
    pub(super) fn note_installed(&self, (id, by): Process, term: u64, covers: LogId) {
        self.with_known(id, |known| {
            let mut sent = Sent::after(known.sent.take(), by, term, 0..=covers.index());
            sent.acknowledged = sent.acknowledged.max(Some(covers));
            known.sent = Some(sent);
        });
    }

    /// Notes that a follower acknowledged the log up to `last`, to this node as the leader of `term`.
    pub(super) fn note_acknowledged(&self, (id, by): Process, term: u64, last: LogId) {
        self.with_known(id, |known| {
            let sent = known.sent.as_mut().filter(|sent| (sent.to, sent.term) == (by, term));
            if let Some(sent) = sent.filter(|sent| sent.run.contains(&last.index())) {
                sent.acknowledged = sent.acknowledged.max(Some(last));
            }
        });
    }

    /// The last entry that this node knows a follower to have acknowledged to it as the leader of `term`.
    pub(super) fn acknowledged(&self, (id, by): Process, term: u64) -> Option<LogId> {
        let sent = self.with_known(id, |known| known.sent.clone());
        sent.filter(|sent| (sent.to, sent.term) == (by, term))?.acknowledged
    }

    /// An error if a follower has acknowledged in `term` what it says that it lacks: from then on it is refused.
    pub(super) fn check_kept(&self, (id, incarnation): Process, term: u64, lacked: LogId) -> io::Result<()> {
        let Some(last) = self.acknowledged((id, incarnation), term).filter(|last| lacked <= *last) else {
            return Ok(());
        };
        let (last, lacked) = (last.index(), lacked.index());
        let what = format!(
            "node {id} acknowledged the log up to entry {last}, and now lacks entry {lacked}: its disk lost what it had flushed, \
             or was turned back to an earlier state. Remove the node from the cluster, empty its data directory, and add it \
             again"
        );
        tracing::error!(peer = id, "{what}");
        self.with_known(id, |known| known.lost = Some((incarnation, what.clone())));
        Err(Self::copied(what))
    }
}

/// Whether the process with these starts is in this one. Builds from before the starts do not say.
fn is_start(starts: &Starts, start: Start) -> bool {
    starts.newest().is_none_or(|newest| newest == start)
}

fn older(id: NodeId, newest: Start, met: Start) -> String {
    format!(
        "node {id} runs with a copy of its data directory: its start number {} does not come after number {}, which was met \
         before. It may have forgotten votes and entries: remove it from the cluster, empty its data directory, and add it \
         again",
        newest.count, met.count
    )
}
