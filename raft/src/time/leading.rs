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
use crate::time::elapsed::{Moment, Quartz};

/// What the tasks of a leading node share.
pub(crate) struct Leading {
    quartz: Quartz,
    lead: Mutex<Option<Lead>>,
    term: watch::Sender<Option<u64>>,
}

struct Lead {
    term: u64,
    floor: Revision,
    clock: ClusterClock,
    advanced: Moment,
    /// The last time that an applied entry carries, in milliseconds, as of the last tick.
    applied_ms: u64,
    /// The entries that are not applied yet, oldest first.
    in_flight: VecDeque<InFlight>,
    next_number: u64,
}

struct InFlight {
    number: u64,
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
    pub(crate) fn new(quartz: Quartz) -> Self {
        Self { quartz, lead: Mutex::new(None), term: watch::Sender::new(None) }
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
        let mut lead = self.lock();
        let lead = lead.as_mut().filter(|lead| lead.term == term)?;
        lead.advance(self.quartz.now());
        Some(lead.clock.now_ms())
    }

    /// Starts to lead in `term`, with the clock at the last applied time, and raises the revision to `floor`. Commands wait
    /// for [`Leading::open`].
    pub(crate) fn begin(&self, term: u64, at_ms: u64, floor: Revision) {
        *self.lock() = Some(Lead {
            term,
            floor,
            clock: ClusterClock::start(at_ms),
            advanced: self.quartz.now(),
            applied_ms: at_ms,
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

    /// Advances the clock. Returns it in milliseconds, and whether it should be logged; `None` while this node does not lead.
    pub(crate) fn tick(&self, applied_ms: u64) -> Option<(u64, bool)> {
        let mut lead = self.lock();
        let lead = lead.as_mut()?;
        lead.applied_ms = applied_ms;
        if lead.in_flight.is_empty() {
            lead.clock.none_in_flight(applied_ms);
        }
        lead.advance(self.quartz.now());
        Some((lead.clock.now_ms(), lead.clock.should_be_logged()))
    }

    /// The time of the next entry; `None` while this node does not lead. To be given back with [`Leading::settled`].
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let mut lead = self.lock();
        let lead = lead.as_mut()?;
        let number = lead.next_number;
        lead.next_number += 1;
        lead.advance(self.quartz.now());
        let at_ms = lead.clock.stamp_ms();
        lead.in_flight.push_back(InFlight { number, since: lead.advanced.tokio });
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
    /// Brings the clock up to date. A lease with a stamp that lags behind would end early by as much.
    fn advance(&mut self, now: Moment) {
        let elapsed = now.since(self.advanced);
        self.advanced = now;
        self.clock.tick(elapsed, self.applied_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last entry before the clock stood still was lost. Nothing was logged from then on, so time stood still for ever.
    #[tokio::test(start_paused = true)]
    async fn time_is_logged_again_after_an_entry_was_lost() {
        let leading = Leading::new(Quartz::none());
        leading.begin(3, 0, Revision(0));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(leading.tick(0), Some((2_000, true)));
        let stamp = leading.stamp().unwrap();
        assert_eq!(leading.tick(0), Some((2_000, false)), "it is on its way");
        leading.settled(stamp);
        assert_eq!(leading.tick(0), Some((2_000, true)));
        leading.settled(leading.stamp().unwrap());
        assert_eq!(leading.tick(2_000), Some((2_000, false)), "this one was applied");
    }

    #[tokio::test]
    async fn commands_wait_until_the_term_is_opened_but_the_first_entry_has_its_stamp() {
        let leading = Leading::new(Quartz::system());
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
