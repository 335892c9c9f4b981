//! Whether this node leads, in which term, and its clock.
//!
//! A node counts as leading once it has applied the first entry of its own term: by then it has applied everything that
//! earlier leaders committed, so its clock can start at the last time in the log.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use ringfence_wire::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::time::clock::ClusterClock;

/// What the tasks of a leading node share.
pub(crate) struct Leading {
    lead: Mutex<Option<Lead>>,
    term: watch::Sender<Option<u64>>,
}

struct Lead {
    term: u64,
    floor: Revision,
    clock: ClusterClock,
    advanced: Instant,
    /// Whether a quorum had acknowledged this node recently, at the last tick.
    quorum_is_fresh: bool,
    /// The entries that are not applied yet, oldest first.
    in_flight: VecDeque<InFlight>,
    next_number: u64,
}

struct InFlight {
    number: u64,
    at_ms: u64,
    since: Instant,
}

/// The time of one entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) term: u64,
    pub(crate) at_ms: u64,
    /// What the entry raises the revision to: the same in all entries of a term.
    pub(crate) floor: Revision,
    number: u64,
}

impl Leading {
    pub(crate) fn new() -> Self {
        Self { lead: Mutex::new(None), term: watch::Sender::new(None) }
    }

    /// The term in which this node leads and takes commands, and every change of that.
    pub(crate) fn term(&self) -> watch::Receiver<Option<u64>> {
        self.term.subscribe()
    }

    /// Whether this node leads and takes commands.
    pub(crate) fn is_open(&self) -> bool {
        self.term.borrow().is_some()
    }

    /// The leader's clock in milliseconds; `None` unless this node leads in `term`.
    pub(crate) fn now_ms_in(&self, term: u64) -> Option<u64> {
        Some(self.lock().as_mut().filter(|lead| lead.term == term)?.advance())
    }

    /// Starts to lead in `term`, with the clock at the last applied time, and raises the revision to `floor`. Commands wait
    /// for [`Leading::open`].
    pub(crate) fn begin(&self, term: u64, at_ms: u64, floor: Revision) {
        *self.lock() = Some(Lead {
            term,
            floor,
            clock: ClusterClock::start(at_ms),
            advanced: Instant::now(),
            quorum_is_fresh: false,
            in_flight: VecDeque::new(),
            next_number: 0,
        });
    }

    /// Takes commands from now on, in the term that has begun. To be called once the table has started to number its
    /// changes: a command before that would be numbered from 1, below what an earlier cluster may have granted.
    pub(crate) fn open(&self) {
        let begun = self.lock().as_ref().map(|lead| lead.term);
        self.term.send_if_modified(|term| std::mem::replace(term, begun) != begun);
    }

    pub(crate) fn end(&self) {
        *self.lock() = None;
        self.term.send_if_modified(|term| term.take().is_some());
    }

    /// Advances the clock, and returns it in milliseconds.
    pub(crate) fn tick(&self, quorum_is_fresh: bool) -> Option<u64> {
        let mut lead = self.lock();
        let lead = lead.as_mut()?;
        lead.quorum_is_fresh = quorum_is_fresh;
        Some(lead.advance())
    }

    /// The time of the next entry; `None` while this node does not lead. To be given back with [`Leading::settled`].
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let mut lead = self.lock();
        let lead = lead.as_mut()?;
        let number = lead.next_number;
        lead.next_number += 1;
        let at_ms = lead.advance();
        lead.in_flight.push_back(InFlight { number, at_ms, since: lead.advanced });
        Some(Stamp { term: lead.term, at_ms, floor: lead.floor, number })
    }

    /// The entry with this stamp is applied, or never will be.
    pub(crate) fn settled(&self, stamp: Stamp) {
        if let Some(lead) = self.lock().as_mut().filter(|lead| lead.term == stamp.term) {
            lead.in_flight.retain(|entry| entry.number != stamp.number);
        }
    }

    /// The age of the oldest entry that is not applied yet; zero if there is none.
    pub(crate) fn oldest(&self) -> Duration {
        let lead = self.lock();
        let oldest = lead.as_ref().and_then(|lead| lead.in_flight.front());
        oldest.map_or(Duration::ZERO, |entry| entry.since.elapsed())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Lead>> {
        self.lead.lock().expect("no panic while the leadership is locked")
    }
}

impl Lead {
    /// The clock in milliseconds, up to date. A lease with a stamp that lags behind would end early by as much.
    fn advance(&mut self) -> u64 {
        let now = Instant::now();
        let elapsed = now - self.advanced;
        self.advanced = now;
        let oldest_uncommitted = self.in_flight.front().map(|entry| entry.at_ms);
        self.clock.tick(elapsed, self.quorum_is_fresh, oldest_uncommitted);
        self.clock.now_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn commands_wait_until_the_term_is_opened_but_the_first_entry_has_its_stamp() {
        let leading = Leading::new();
        assert!(leading.stamp().is_none());
        leading.begin(3, 50, Revision(9));
        assert!(!leading.is_open());
        let stamp = leading.stamp().unwrap();
        assert_eq!((stamp.term, stamp.at_ms, stamp.floor), (3, 50, Revision(9)));
        leading.open();
        assert!(leading.is_open());
        assert_eq!(*leading.term().borrow(), Some(3));
        leading.end();
        leading.open();
        assert_eq!(*leading.term().borrow(), None);
    }
}
