//! What this node knows of how new its changes are.
//!
//! A bookmark says that everything up to its revision was sent. Who reads it takes it for more: nothing has changed since. So a
//! node whose changes are old, because it hears no leader or is no member any more, must not send one. It asks all the while
//! for a linearizable read: its table is then as new as the cluster's was after it asked. Once all of that is fanned out, the
//! watches are as new as that. How new that is shows when a bookmark is sent: by then it may be old, as the thread or the machine
//! may have slept. So this counts by a clock that goes on meanwhile.

use std::time::Duration;

use ringfence_wire::Revision;
use rustix::time::{ClockId, clock_gettime};

/// How often, while there are watches, a node asks, and how long an answer may take.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(2);
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Bookmarks are sent by a node whose watches are at most so old.
const RECENT: Duration = Duration::from_secs(5);
/// Watches end when a node asks in vain after so long: after 30 s at most. One that was stopped as a whole asks first.
const LOST: Duration = Duration::from_secs(20);

/// An instant by `CLOCK_BOOTTIME`, which goes on while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // Since the machine started, so neither is negative.
        Self(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32))
    }

    fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// How new the watches of a node are.
pub(super) struct Contact {
    /// They have everything that the cluster had committed by then.
    as_of: Moment,
    /// The same of what was read, and is not fanned out yet: when it was asked for, and the last revision.
    read: Option<(Moment, Revision)>,
}

impl Contact {
    pub(super) fn new(now: Moment) -> Self {
        Self { as_of: now, read: None }
    }

    /// A read that began at `asked` found this revision.
    pub(super) fn read(&mut self, asked: Moment, found: Revision) {
        self.read = Some((asked, found));
    }

    /// Everything up to `position` is fanned out. Whether another read would tell more than the last.
    pub(super) fn reached(&mut self, position: Revision) -> bool {
        if let Some((asked, found)) = self.read
            && found <= position
        {
            (self.as_of, self.read) = (self.as_of.max(asked), None);
        }
        self.read.is_none()
    }

    pub(super) fn is_recent(&self, now: Moment) -> bool {
        now.since(self.as_of) <= RECENT
    }

    /// Whether contact is lost, as a read that began at `asked` has failed.
    pub(super) fn is_lost(&self, asked: Moment) -> bool {
        asked.since(self.as_of) >= LOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_as_new_as_a_read_once_all_that_it_found_is_fanned_out() {
        let at = |seconds| Moment(Duration::from_secs(100 + seconds));
        let are_recent =
            |contact: &Contact, seconds: [u64; 2]| seconds.map(|seconds| contact.is_recent(at(seconds)));
        let are_lost =
            |contact: &Contact, seconds: [u64; 2]| seconds.map(|seconds| contact.is_lost(at(seconds)));
        let mut contact = Contact::new(at(0));
        assert_eq!(are_recent(&contact, [5, 6]), [true, false]);
        assert_eq!(are_lost(&contact, [19, 20]), [false, true]);
        contact.read(at(4), Revision(7));
        assert!(!contact.reached(Revision(6)), "a later read may never be reached");
        assert_eq!(are_recent(&contact, [5, 6]), [true, false]);
        assert!(contact.reached(Revision(7)));
        // From when it was asked for, not from now.
        assert_eq!(are_recent(&contact, [9, 10]), [true, false]);
        assert_eq!(are_lost(&contact, [23, 24]), [false, true]);
    }
}
