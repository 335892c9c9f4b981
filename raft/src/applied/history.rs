//! The recent changes of the table, for watches.
//!
//! Apply keeps them, so they are the same on every node, and no change is missing between two of them: a revision that none
//! has was skipped. How far back they go differs by node: to the log or snapshot that it started from, within the bounds
//! below.

use std::collections::VecDeque;

use ringfence_lease::Event;
use ringfence_wire::{Key, Mode, Revision, Token};

/// The maximum number of changes kept.
const MOST: usize = 65_536;
/// The maximum size of all changes in bytes, estimated.
const MOST_BYTES: usize = 8 << 20;
/// The maximum number of times that revisions were skipped: once in each term of a leader.
const MOST_SKIPS: usize = 1_024;
/// The size of a change and of each of its keys in bytes, allocations included, without their text.
const BYTES_OF_ONE: usize = size_of::<Event>() + 16;
const BYTES_OF_KEY: usize = size_of::<(Key, Mode, Token)>() + 16;

/// The recent changes of the table.
#[derive(Debug)]
pub struct History {
    /// The revision before the first change.
    before: Revision,
    /// The revision of the last [`History::start_after`].
    began_after: Revision,
    /// The table's revision.
    last: Revision,
    /// Revisions that were skipped: those between each two. Nobody was ever told one of them.
    skips: VecDeque<(Revision, Revision)>,
    events: VecDeque<Event>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
}

/// The history of an empty table.
impl Default for History {
    fn default() -> Self {
        Self::with_bounds(MOST, MOST_BYTES)
    }
}

impl History {
    fn with_bounds(most: usize, most_bytes: usize) -> Self {
        Self {
            before: Revision(0),
            began_after: Revision(0),
            last: Revision(0),
            skips: VecDeque::new(),
            events: VecDeque::new(),
            bytes: 0,
            most,
            most_bytes,
        }
    }

    /// The revision before the oldest change kept.
    pub fn before(&self) -> Revision {
        self.before
    }

    /// Changes up to this revision were never here: the node started from a table that included them.
    pub fn began_after(&self) -> Revision {
        self.began_after
    }

    /// The table's revision: that of the latest change, or later if a leader raised it.
    pub fn last(&self) -> Revision {
        self.last
    }

    /// The changes after `revision`; `None` if some of them were dropped, `revision` is still in the future, or it was skipped:
    /// then it is of another cluster, or of changes that were lost.
    pub fn after(&self, revision: Revision) -> Option<impl Iterator<Item = &Event>> {
        let skip = self.skips.get(self.skips.partition_point(|(_, to)| *to <= revision));
        let is_skipped = skip.is_some_and(|(from, _)| *from < revision);
        let is_known = self.before <= revision && revision <= self.last && !is_skipped;
        is_known.then(|| self.events.range(self.place(revision)..))
    }

    /// How many changes after `revision` are kept.
    pub fn count_after(&self, revision: Revision) -> usize {
        self.events.len() - self.place(revision)
    }

    /// Of the first change after `revision`.
    fn place(&self, revision: Revision) -> usize {
        self.events.partition_point(|event| event.revision <= revision)
    }

    /// The revision of the first change after `revision` that is kept; `None` if there is none.
    pub fn next_after(&self, revision: Revision) -> Option<Revision> {
        self.events.get(self.place(revision)).map(|event| event.revision)
    }

    /// Drops all changes; the next one follows `revision`.
    pub fn start_after(&mut self, revision: Revision) {
        self.events.clear();
        self.skips.clear();
        (self.before, self.began_after, self.last, self.bytes) = (revision, revision, revision, 0);
    }

    /// The table's revision is `revision` now, and no change is missing up to there.
    pub fn raise(&mut self, revision: Revision) {
        if self.last == Revision(0) {
            // A new cluster does not start at revision 0.
            self.start_after(revision);
        } else if self.last < revision {
            self.skips.push_back((self.last, revision));
            self.last = revision;
        }
        while self.skips.len() > MOST_SKIPS
            && let Some((_, to)) = self.skips.pop_front()
        {
            self.drop_up_to(to);
        }
    }

    fn drop_up_to(&mut self, revision: Revision) {
        let dropped = self.events.drain(..self.place(revision));
        self.bytes -= dropped.map(|event| bytes_of(&event)).sum::<usize>();
        self.before = revision;
    }

    /// Appends `event`, and drops the oldest changes beyond the bounds.
    pub fn keep(&mut self, event: Event) {
        self.raise(Revision(event.revision.0.saturating_sub(1)));
        self.last = event.revision;
        self.bytes += bytes_of(&event);
        self.events.push_back(event);
        while (self.events.len() > self.most || self.bytes > self.most_bytes)
            && let Some(oldest) = self.events.front().map(|event| event.revision)
        {
            self.drop_up_to(oldest);
        }
        let dropped = self.skips.partition_point(|(_, to)| *to <= self.before);
        self.skips.drain(..dropped);
    }
}

fn bytes_of(event: &Event) -> usize {
    let keys = event.keys.iter().map(|(key, ..)| key.as_str().len() + BYTES_OF_KEY);
    let holder = event.holder.as_ref().map_or(0, |holder| holder.as_str().len());
    let by = event.by.as_ref().map_or(0, |name| name.as_str().len());
    BYTES_OF_ONE + keys.sum::<usize>() + holder + by
}

#[cfg(test)]
mod tests {
    use ringfence_lease::Change;
    use ringfence_wire::{Holder, LeaseId};

    use super::*;

    fn event(revision: u64, key: &str) -> Event {
        Event {
            revision: Revision(revision),
            lease_id: LeaseId::from_u128(1).unwrap(),
            by: None,
            change: Change::Queued,
            token: None,
            keys: vec![(Key::new(key).unwrap(), Mode::Exclusive, Token(1))],
            holder: None,
        }
    }

    fn numbers_after(history: &History, revision: u64) -> Option<Vec<u64>> {
        Some(history.after(Revision(revision))?.map(|event| event.revision.0).collect())
    }

    #[test]
    fn changes_are_found_by_revision_and_dropped_or_future_ones_are_not_an_empty_list() {
        let mut history = History::with_bounds(3, usize::MAX);
        assert_eq!((numbers_after(&history, 0), numbers_after(&history, 1)), (Some(vec![]), None));
        (1..=5).for_each(|revision| history.keep(event(revision, "a")));
        assert_eq!((history.before(), history.last()), (Revision(2), Revision(5)));
        assert_eq!(numbers_after(&history, 1), None);
        assert_eq!(numbers_after(&history, 2), Some(vec![3, 4, 5]));
        assert_eq!(numbers_after(&history, 4), Some(vec![5]));
        assert_eq!(numbers_after(&history, 5), Some(vec![]));
        assert_eq!(numbers_after(&history, 6), None);
        assert_eq!(numbers_after(&history, u64::MAX), None);
    }

    #[test]
    fn after_a_snapshot_nothing_earlier_is_known_and_revisions_that_were_skipped_hide_no_change() {
        let mut history = History::default();
        history.start_after(Revision(1_000));
        history.keep(event(1_001, "a"));
        assert_eq!(numbers_after(&history, 1_000), Some(vec![1_001]));
        assert_eq!(numbers_after(&history, 999), None);
        history.keep(event(2_001, "a"));
        history.raise(Revision(3_000));
        history.raise(Revision(2_500));
        assert_eq!(history.last(), Revision(3_000));
        assert_eq!(numbers_after(&history, 1_001), Some(vec![2_001]));
        assert_eq!(numbers_after(&history, 2_000), Some(vec![2_001]));
        assert_eq!(numbers_after(&history, 3_000), Some(vec![]));
        // Nobody was told these: they are of another cluster, or of what was lost.
        assert_eq!(
            [1_500, 2_700, 3_001].map(|skipped| numbers_after(&history, skipped)),
            [const { None }; 3]
        );
        history.keep(event(3_001, "a"));
        assert_eq!(numbers_after(&history, 2_001), Some(vec![3_001]));
        assert_eq!((history.count_after(Revision(1_000)), history.count_after(Revision(3_000))), (3, 1));
        for term in 4..4 + 2 * MOST_SKIPS as u64 {
            history.raise(Revision(1_000 * term));
        }
        assert!(history.skips.len() == MOST_SKIPS && history.events.is_empty());
        assert_eq!(
            (numbers_after(&history, 3_001), numbers_after(&history, history.last().0)),
            (None, Some(vec![]))
        );
        history.start_after(Revision(9_000));
        assert_eq!((numbers_after(&history, 2_001), numbers_after(&history, 9_000)), (None, Some(vec![])));
        assert_eq!((history.began_after(), history.bytes), (Revision(9_000), 0));
    }

    #[test]
    fn long_keys_and_holders_make_the_history_shorter() {
        let long = event(1, &"k".repeat(Key::MAX_BYTES));
        let mut history = History::with_bounds(MOST, 10 * bytes_of(&long));
        (1..=100).for_each(|revision| history.keep(event(revision, &"k".repeat(Key::MAX_BYTES))));
        assert_eq!((history.events.len(), history.last()), (10, Revision(100)));
        let labelled = Event { holder: Holder::new(&"h".repeat(256)), ..event(101, &"k".repeat(512)) };
        history.keep(labelled);
        assert_eq!((history.events.len(), history.began_after()), (9, Revision(0)));
        // A single change beyond the bounds is dropped, too.
        let mut history = History::with_bounds(MOST, 1);
        history.keep(event(1, "a"));
        assert_eq!((history.before(), history.last(), history.bytes), (Revision(1), Revision(1), 0));
    }
}
