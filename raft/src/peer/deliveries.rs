//! Snapshots that were not delivered: why, and from when on the next attempt may be made.
//!
//! openraft repeats a transfer for as long as the member needs it, and each attempt costs both sides the whole snapshot. So the
//! pause before the next attempt grows. Both sides log a reason once. The leader also shows it until a snapshot was delivered, or the
//! member has got from the log what the snapshot covers. What it met in an earlier term counts no more: others have led since.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::time::Instant;

use super::directory::{Directory, Target};
use super::known::{Process, Undelivered};
use crate::consensus::{LogId, NodeId};

/// The pause after the first attempt. Each that follows doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MOST_PAUSE: Duration = Duration::from_secs(30);

impl Directory {
    /// From when on the next attempt may be made, if that is not yet.
    pub(super) fn next_delivery(&self, target: Target, term: u64) -> Option<Instant> {
        self.with_known(target.to, |known| {
            let failed = known.undelivered.as_ref();
            let failed = failed.filter(|failed| Some(failed.to) == target.incarnation && failed.term == term);
            failed.map(|failed| failed.next).filter(|next| *next > Instant::now())
        })
    }

    /// Notes that this node, as the leader of `term`, did not deliver a snapshot.
    pub(super) fn note_undelivered(
        &self,
        target: Target,
        term: u64,
        covers: Option<LogId>,
        error: &io::Error,
    ) {
        let Some(to) = target.incarnation else { return };
        let reason = error.to_string();
        self.with_known(target.to, |known| {
            let before = known.undelivered.take().filter(|failed| failed.to == to && failed.term == term);
            let pause = before.as_ref().map_or(PAUSE, |failed| MOST_PAUSE.min(2 * failed.pause));
            if before.is_none_or(|failed| failed.reason != reason) {
                tracing::warn!(
                    peer = target.to,
                    error = reason,
                    "a snapshot could not be delivered; it is tried again, and the same reason is not logged again"
                );
            }
            let next = Instant::now() + pause;
            known.undelivered = Some(Undelivered { to, term, covers, reason, pause, next });
        });
    }

    /// Notes that this node, as the leader of `term`, has delivered a snapshot.
    pub(super) fn note_delivered(&self, target: Target, term: u64, covers: Option<LogId>) {
        self.with_known(target.to, |known| known.undelivered = None);
        if let Some((to, covers)) = target.incarnation.zip(covers) {
            self.note_installed((target.to, to), term, covers);
        }
    }

    /// Notes that a member has got the log up to `matched`, by whatever way: it needs no snapshot that covers no more than that.
    pub(super) fn note_matched(&self, (id, incarnation): Process, matched: LogId) {
        self.with_known(id, |known| {
            known.undelivered.take_if(|failed| failed.to == incarnation && Some(matched) >= failed.covers);
        });
    }

    /// Why the last snapshot for this member was not delivered, since this node leads in `term`, and until the member has got what it
    /// covers.
    pub(crate) fn undelivered(&self, (id, incarnation): Process, term: u64) -> Option<String> {
        self.with_known(id, |known| {
            let failed = known.undelivered.as_ref();
            let failed = failed.filter(|failed| failed.to == incarnation && failed.term == term);
            failed.map(|failed| failed.reason.clone())
        })
    }

    /// The error with which this node did not receive a snapshot. A repeated one has a kind of its own, which is not logged as a
    /// warning.
    pub(super) fn note_unreceived(&self, from: NodeId, error: io::Error) -> io::Error {
        let reason = Some(error.to_string());
        let before = self.with_known(from, |known| std::mem::replace(&mut known.unreceived, reason.clone()));
        if before == reason { io::Error::new(ErrorKind::AlreadyExists, error) } else { error }
    }

    /// Notes that this node received a snapshot.
    pub(super) fn note_received(&self, from: NodeId) {
        self.with_known(from, |known| known.unreceived = None);
    }
}
