//! Two processes with one data directory.
//!
//! A data directory that is copied, or turned back to an earlier state, has the incarnation of a member, and has forgotten what
//! the member voted and acknowledged since. Three rules keep it out, as far as anybody is left who knows better:
//!
//! 1. A process is refused if it does not come after the newest [`Start`] of its directory that this node has met.
//! 2. A process that this node has not met is refused if another one answers at the member's address: the directory of a
//!    running node was copied.
//! 3. A follower that lacks an entry which it acknowledged to this leader is refused: see `append`.
//!
//! Each side says which start of the other it has met, so both notice. A process that is refused for this records it in its data directory, and stops: it must not go on to where nobody knows
//! better. If nobody does, entries may be lost; each new leader raises the revision above all tokens that may have been granted
//! then (`time::wall`).

use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use super::directory::{Directory, Process, Target};
use super::handshake::Channel;
use crate::consensus::{LogId, NodeId};
use crate::storage::starts::{Start, Starts};

/// How long a member's address may take to answer. If it takes longer, the process that calls is believed.
const ASK: Duration = Duration::from_millis(500);

/// What a node knows of the processes of one member.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The newest start of a data directory.
    met: Option<(Uuid, Start)>,
    /// The last entry that a data directory acknowledged to this node as the leader of a term.
    acknowledged: Option<(Uuid, u64, LogId)>,
    /// A data directory that has lost something, and what.
    lost: Option<(Uuid, String)>,
}

/// The reason why a process must not go on, as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Copied(String);

/// Whether `error` says that a process runs with a copy of a data directory.
pub(super) fn is_copy(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Copied>())
}

impl Directory {
    /// Why this process must not go on, once another node has said so.
    pub(crate) fn condemned(&self) -> watch::Receiver<Option<String>> {
        self.condemned.subscribe()
    }

    /// The newest start of this process's data directory that this node has met.
    pub(super) fn met(&self, id: NodeId, incarnation: Option<Uuid>) -> Option<Start> {
        let met = self.with_known(id, |known| known.met);
        met.filter(|(it, _)| Some(*it) == incarnation).map(|(_, start)| start)
    }

    /// An error if `by` has met a start of this node's data directory that this process does not come after.
    pub(super) fn check_own(&self, by: NodeId, met: Option<Start>) -> io::Result<()> {
        let starts = &self.identity.starts;
        let (Some(met), Some(newest)) = (met, starts.newest()) else { return Ok(()) };
        if starts.include(met) {
            return Ok(());
        }
        let reason = older(self.identity.node_id, newest, met);
        self.condemn(by, &reason);
        Err(self.copied(reason))
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
            return Err(self.copied(what));
        }
        match (self.met(id, Some(incarnation)), starts.newest()) {
            (Some(met), Some(newest)) if !starts.include(met) => Err(self.copied(older(id, newest, met))),
            _ => Ok(()),
        }
    }

    /// As [`check_starts`](Self::check_starts) for a caller; and an error if another process answers at the member's address.
    /// Afterwards the caller was met.
    pub(super) async fn check_alone(&self, caller: Process, starts: &Starts) -> io::Result<()> {
        self.check_starts(caller, starts)?;
        let Some(newest) = starts.newest().filter(|newest| !self.has_met(caller, *newest)) else {
            return Ok(());
        };
        let (to, incarnation) = caller;
        let target = Target { to, incarnation: Some(incarnation), channel: Channel::Founding };
        if let Ok(Ok((_, _, found))) = timeout(ASK, self.greet(target)).await
            && found.newest().is_some_and(|found| found != newest)
        {
            return Err(self.copied(format!(
                "another process with the data directory of node {to} answers at its address: this one is a copy. Remove the \
                 node from the cluster, empty both data directories, and add it again"
            )));
        }
        // Another process may have been met meanwhile.
        self.check_starts(caller, starts)?;
        self.meet(caller, newest);
        Ok(())
    }

    pub(super) fn meet(&self, (id, incarnation): Process, newest: Start) {
        if self.is_named(id) {
            self.with_known(id, |known| known.met = Some((incarnation, newest)));
        }
    }

    fn copied(&self, reason: String) -> io::Error {
        self.copies_refused.increment(1);
        io::Error::new(io::ErrorKind::PermissionDenied, Copied(reason))
    }

    fn has_met(&self, (id, incarnation): Process, start: Start) -> bool {
        self.with_known(id, |known| known.met == Some((incarnation, start)))
    }

    /// Notes that a follower acknowledged the log up to `last`, to this node as the leader of `term`.
    pub(super) fn note_acknowledged(&self, (id, incarnation): Process, term: u64, last: LogId) {
        self.with_known(id, |known| {
            let before = known.acknowledged.filter(|(it, in_term, _)| (*it, *in_term) == (incarnation, term));
            if before.is_none_or(|(_, _, before)| before < last) {
                known.acknowledged = Some((incarnation, term, last));
            }
        });
    }

    /// An error if a follower has acknowledged in `term` what it says that it lacks: from then on it is refused.
    pub(super) fn check_kept(&self, follower: Process, term: u64, lacked: LogId) -> io::Result<()> {
        let (id, incarnation) = follower;
        let acknowledged = self.with_known(id, |known| known.acknowledged);
        let Some((_, _, last)) = acknowledged
            .filter(|(it, in_term, last)| (*it, *in_term) == (incarnation, term) && lacked <= *last)
        else {
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
        Err(self.copied(what))
    }
}

fn older(id: NodeId, newest: Start, met: Start) -> String {
    format!(
        "node {id} runs with a copy of its data directory: its start number {} does not come after number {}, which was met \
         before. It may have forgotten votes and entries: remove it from the cluster, empty its data directory, and add it \
         again",
        newest.count, met.count
    )
}
