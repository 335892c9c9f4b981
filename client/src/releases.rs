//! The releases in the background of one client: how many there are, and when they are over.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence_wire::LeaseId;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::outlive::Least;

/// The releases in the background of one client.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    tally: watch::Sender<Tally>,
    /// Whether releases must end now, as the client is closed.
    cut_off: watch::Sender<bool>,
    /// The thread that releases what runtimes left when they ended, while there is one.
    pub(crate) last: Mutex<Option<Worker>>,
}

#[derive(Debug, Default)]
struct Tally {
    /// Releases, and calls that may end with one.
    under_way: usize,
    /// How many have failed so far.
    failed: usize,
}

impl Releases {
    /// Counts a release, or a call that may end with one, until the result is dropped: a runtime that ends drops it with the task.
    /// Call this before the check that the client is open. Then `close` waits for what passed the check.
    pub(crate) fn count(&self) -> UnderWay {
        self.tally.send_if_modified(|tally| {
            tally.under_way += 1;
            false
        });
        UnderWay { tally: self.tally.clone(), has_failed: false }
    }

    /// How many have failed so far.
    pub(crate) fn failed(&self) -> usize {
        self.tally.borrow().failed
    }

    /// Waits until none is under way, for at most this time. Returns how many still are under way or have failed so far. The client must be
    /// closed: then whatever begins now ends at once.
    pub(crate) async fn settle(&self, within: Duration) -> usize {
        let mut tally = self.tally.subscribe();
        // The sender cannot be gone: `self` has it.
        let _ = timeout(within, tally.wait_for(|tally| tally.under_way == 0)).await;
        let tally = self.tally.borrow();
        tally.under_way + tally.failed
    }

    /// Ends all, also those to come. All of them count as failed.
    pub(crate) fn end(&self) {
        self.cut_off.send_replace(true);
    }

    /// Becomes true once releases must end.
    pub(crate) fn ends(&self) -> watch::Receiver<bool> {
        self.cut_off.subscribe()
    }

    pub(crate) fn are_over(&self) -> bool {
        *self.cut_off.borrow()
    }
}

/// Counts as under way until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    tally: watch::Sender<Tally>,
    pub(crate) has_failed: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.tally.send_if_modified(|tally| {
            tally.under_way -= 1;
            tally.failed += usize::from(self.has_failed);
            // Wake only if somebody waits, which is rare.
            tally.under_way == 0 && self.tally.receiver_count() > 0
        });
    }
}

/// What does all that is left, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) jobs: UnboundedSender<Job>,
    /// The end of a runtime waits at most until then.
    pub(crate) until: Instant,
    /// Each job that is under way has a clone.
    pub(crate) under_way: Arc<()>,
}

/// A lease that is to be released, or to last for a time.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) lease_id: LeaseId,
    pub(crate) least: Option<Least>,
    /// Dropped once that is done.
    pub(crate) _done: Sender<()>,
    pub(crate) under_way: Arc<()>,
}
