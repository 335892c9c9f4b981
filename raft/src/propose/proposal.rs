//! A request in the queue, and what comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringfence_lease::{Outcome, Request};

use super::asker::Asker;
use crate::reply::Reply;

/// The maximum number of queued requests, and the maximum of their bytes together; more are rejected.
pub(super) const MAX_QUEUED: usize = 65_536;
pub(super) const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Why commands have no outcome.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Certainly not done: they are in no log and never will be.
    Rejected(Request),
    /// Certainly not done: the queue is full, or the asker has its part of it.
    Full,
    /// They may have been committed, or may still be.
    Unknown,
}

/// The outcomes of the commands of one request, in their order.
pub(crate) type Proposed = Result<Vec<Outcome>, Failure>;

/// Where a request comes from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) asker: Asker,
    /// The newest rules that the client's node supports. Under newer rules, its request is rejected: names may be other keys there.
    pub(crate) supports: u8,
}

/// A request from this program.
impl From<Asker> for Origin {
    fn from(asker: Asker) -> Self {
        Self { asker, supports: u8::MAX }
    }
}

/// A request that was admitted to the queue.
pub(crate) struct Proposal {
    pub(super) asker: Asker,
    pub(super) supports: u8,
    pub(super) request: Request,
    pub(super) reply: Reply<Proposed>,
    /// What it raises the rules to.
    pub(super) raise: Option<Raise>,
    pub(super) share: QueueShare,
}

impl Proposal {
    /// Admits a request to the queue, unless that is full.
    pub(super) fn admit(
        queued: &Arc<Queued>,
        Origin { asker, supports }: Origin,
        request: Request,
        reply: Reply<Proposed>,
    ) -> Result<Self, Failure> {
        let share = QueueShare::take(queued, request.size_hint()).ok_or(Failure::Full)?;
        Ok(Self { asker, supports, request, reply, raise: None, share })
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.share.bytes
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn refuse(self, why: Failure) {
        self.reply.send(Err(why));
    }

    /// A proposal of this size, and its reply.
    #[cfg(test)]
    pub(super) fn of(asker: Asker, bytes: usize) -> (Self, tokio::sync::oneshot::Receiver<Proposed>) {
        let (reply, answer) = Reply::new(None);
        let share =
            QueueShare { queued: Arc::new(Queued { requests: 1.into(), bytes: bytes.into() }), bytes };
        (Self { asker, supports: u8::MAX, request: Request::default(), reply, raise: None, share }, answer)
    }
}

/// The rules to raise to, unless they are in use already, and the term in which the members were asked whether they support them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raise {
    pub(crate) rules: u8,
    pub(crate) term: u64,
}

/// The totals of the queued requests.
#[derive(Default)]
pub(super) struct Queued {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// A request's share of the queue, returned when dropped.
pub(super) struct QueueShare {
    queued: Arc<Queued>,
    bytes: usize,
}

#[cfg(test)]
impl Queued {
    /// How many requests are queued.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl QueueShare {
    /// `None` if there is no room.
    fn take(queued: &Arc<Queued>, bytes: usize) -> Option<Self> {
        let take = |counter: &AtomicUsize, more: usize, most: usize| {
            let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        };
        if !take(&queued.requests, 1, MAX_QUEUED) {
            return None;
        }
        if !take(&queued.bytes, bytes, MAX_QUEUED_BYTES) {
            queued.requests.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self { queued: Arc::clone(queued), bytes })
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.queued.requests.fetch_sub(1, Ordering::Relaxed);
        self.queued.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_by_requests_and_by_bytes() {
        let queued = Arc::new(Queued::default());
        let large: Vec<_> =
            (0..4).map(|_| QueueShare::take(&queued, MAX_QUEUED_BYTES / 4).unwrap()).collect();
        assert!(QueueShare::take(&queued, 1).is_none());
        drop(large);
        let admit = || Proposal::admit(&queued, Asker::NODE.into(), Request::default(), Reply::new(None).0);
        let many: Vec<_> = (0..MAX_QUEUED).map(|_| admit().unwrap_or_else(|why| panic!("{why:?}"))).collect();
        assert!(matches!(admit(), Err(Failure::Full)), "it is not tried again");
        drop(many);
        assert!(QueueShare::take(&queued, 1).is_some());
    }
}
