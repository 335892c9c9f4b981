//! The releases in the background of one client: how many there are, and when they are over.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence_wire::LeaseId;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::outlive::Least;

/// The releases in the background of one client.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// What is under way has a receiver. Counts those that have failed.
    under_way: watch::Sender<usize>,
    /// How many acquires are under way, which may end with a release, and releases of a lease by its id.
    acquiring: AtomicUsize,
    /// Whether somebody waits for their end, and is told once there are none.
    is_settling: AtomicBool,
    none_acquires: Notify,
    /// How many were left when they were over: the client is closed.
    cut_off: watch::Sender<Option<usize>>,
    /// The thread that releases what runtimes left when they ended, while there is one.
    pub(crate) last: Mutex<Option<Worker>>,
}

impl Releases {
    /// Counts as under way until this is dropped. A runtime that has ended drops it with the task.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.under_way.subscribe()
    }

    /// Counts an acquire, or another call that may end with a release, until this is dropped.
    pub(crate) fn acquiring(&self) -> Acquiring<'_> {
        self.acquiring.fetch_add(1, Ordering::SeqCst);
        Acquiring(self)
    }

    /// How many have failed so far.
    pub(crate) fn failed(&self) -> usize {
        *self.under_way.borrow()
    }

    /// Waits until none is under way, for at most this time. Returns how many still are. The client is closed: no acquire begins.
    pub(crate) async fn settle(&self, within: Duration) -> usize {
        self.is_settling.store(true, Ordering::SeqCst);
        let settles = async {
            loop {
                let mut none_acquires = pin!(self.none_acquires.notified());
                none_acquires.as_mut().enable();
                if self.acquiring.load(Ordering::SeqCst) == 0 {
                    break;
                }
                none_acquires.await;
            }
            self.under_way.closed().await;
        };
        let settled = timeout(within, settles).await;
        let under_way = || self.acquiring.load(Ordering::SeqCst) + self.under_way.receiver_count();
        settled.map_or_else(|_| under_way(), |()| 0)
    }

    /// Ends all, also those to come, of which `under_way` are. Returns how many were when they ended: by now, or before.
    pub(crate) fn end(&self, under_way: usize) -> usize {
        let mut left = under_way;
        self.cut_off.send_modify(|cut_off| left = *cut_off.get_or_insert(under_way));
        left
    }

    /// Changes once they are over.
    pub(crate) fn ends(&self) -> watch::Receiver<Option<usize>> {
        self.cut_off.subscribe()
    }

    pub(crate) fn are_over(&self) -> bool {
        self.cut_off.borrow().is_some()
    }

    pub(crate) fn note_failure(&self) {
        self.under_way.send_modify(|failed| *failed += 1);
    }
}

/// An acquire that is under way.
pub(crate) struct Acquiring<'a>(&'a Releases);

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let was_last = self.0.acquiring.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.0.is_settling.load(Ordering::SeqCst) {
            self.0.none_acquires.notify_waiters();
        }
    }
}

/// What does all that is left, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) jobs: UnboundedSender<Job>,
    /// Nobody waits for longer for what is under way.
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
