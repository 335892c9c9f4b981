//! The recent changes of the table, for watches.
//!
//! Apply keeps them, so they are the same on every node, and no change is missing between two of them: a revision that none
//! has was skipped. How far back they go differs by node: to the log or snapshot that it started from, within the bounds
//! below.
//!
//! If they take too many bytes, the principal whose changes take most loses its oldest ones. A watch misses nothing if none of them was
//! of the tree that it watches: a tree is all keys with the same text up to their first slash. A watch of a prefix without a slash watches all.

mod owners;

use std::collections::{BTreeMap, VecDeque};

use ringfence_lease::Event;
use ringfence_wire::{Key, Mode, Revision, Token};

use self::owners::Owners;

/// The maximum number of changes kept.
const MOST: usize = 65_536;
/// The maximum size of all changes in bytes, estimated.
const MOST_BYTES: usize = 8 << 20;
/// The maximum number of times that revisions were skipped: once in each term of a leader.
const MOST_SKIPS: usize = 1_024;
/// The maximum number of trees of which changes were dropped between others that are kept.
const MOST_TREES: usize = 1_024;
/// The size of a change and of each of its keys in bytes, allocations included, without their text.
const BYTES_OF_ONE: usize = size_of::<Event>() + 64;
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
    /// In the order of their revisions; `None` for one that was dropped.
    events: VecDeque<(Revision, Option<Box<Event>>)>,
    owners: Owners,
    /// The last change of each tree, and of all, that was dropped though earlier ones are kept.
    dropped: BTreeMap<Box<str>, Revision>,
    last_dropped: Revision,
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
            owners: Owners::default(),
            dropped: BTreeMap::new(),
            last_dropped: Revision(0),
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

    /// The changes after `revision`, those of keys that start with `prefix` and others; `None` if some of the former were dropped,
    /// `revision` is still in the future, or it was skipped: then it is of another cluster, or of changes that were lost.
    pub fn after(&self, revision: Revision, prefix: &str) -> Option<impl Iterator<Item = &Event>> {
        let skip = self.skips.get(self.skips.partition_point(|(_, to)| *to <= revision));
        let is_skipped = skip.is_some_and(|(from, _)| *from < revision);
        let is_known = self.oldest(prefix) <= revision && revision <= self.last && !is_skipped;
        is_known.then(|| self.events.range(self.place(revision)..).filter_map(|(_, event)| event.as_deref()))
    }

    /// The first revision after which no change of keys that start with `prefix` was dropped.
    pub fn oldest(&self, prefix: &str) -> Revision {
        let dropped = match tree(prefix) {
            Some(tree) => self.dropped.get(tree).copied().unwrap_or_default(),
            None => self.last_dropped,
        };
        dropped.max(self.before)
    }

    /// How many changes after `revision` there were, those included that were dropped since.
    pub fn count_after(&self, revision: Revision) -> usize {
        self.events.len() - self.place(revision)
    }

    /// Of the first change after `revision`.
    fn place(&self, revision: Revision) -> usize {
        self.events.partition_point(|(of, _)| *of <= revision)
    }

    /// The revision of the first change after `revision` that is kept; `None` if there is none.
    pub fn next_after(&self, revision: Revision) -> Option<Revision> {
        let mut kept = self.events.range(self.place(revision)..).filter(|(_, event)| event.is_some());
        kept.next().map(|(of, _)| *of)
    }

    /// Drops all changes; the next one follows `revision`.
    pub fn start_after(&mut self, revision: Revision) {
        self.events.clear();
        self.skips.clear();
        self.dropped.clear();
        self.owners = Owners::default();
        (self.before, self.began_after, self.last) = (revision, revision, revision);
        self.last_dropped = Revision(0);
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
        while self.events.front().is_some_and(|(of, _)| *of <= revision)
            && let Some((_, event)) = self.events.pop_front()
        {
            let Some(event) = event else { continue };
            let bytes = bytes_of(&event);
            self.owners.drop_oldest(&event.by, bytes);
        }
        self.before = revision;
    }

    /// Appends `event`, and drops changes beyond the bounds.
    pub fn keep(&mut self, event: Event) {
        self.raise(Revision(event.revision.0.saturating_sub(1)));
        let (revision, bytes) = (event.revision, bytes_of(&event));
        self.last = revision;
        self.owners.add(&event.by, revision, bytes);
        self.events.push_back((revision, Some(Box::new(event))));
        while self.events.len() > self.most
            && let Some((oldest, _)) = self.events.front()
        {
            self.drop_up_to(*oldest);
        }
        while self.owners.bytes() > self.most_bytes
            && let Some((oldest, is_alone)) = self.owners.oldest_of_largest()
        {
            if is_alone { self.drop_up_to(oldest) } else { self.drop_one(oldest) }
        }
        let dropped = self.skips.partition_point(|(_, to)| *to <= self.before);
        self.skips.drain(..dropped);
    }

    /// Drops one change, and remembers its trees.
    fn drop_one(&mut self, revision: Revision) {
        let place = self.place(Revision(revision.0 - 1));
        let Some(event) = self.events.get_mut(place).and_then(|(_, event)| event.take()) else { return };
        let bytes = bytes_of(&event);
        self.owners.drop_oldest(&event.by, bytes);
        self.last_dropped = self.last_dropped.max(revision);
        for tree in event.keys.iter().filter_map(|(key, ..)| tree(key.as_str())) {
            match self.dropped.get_mut(tree) {
                Some(last) => *last = revision,
                None => drop(self.dropped.insert(tree.into(), revision)),
            }
        }
        while let Some((_, None)) = self.events.front() {
            self.events.pop_front();
        }
        if self.dropped.len() > MOST_TREES {
            self.dropped.clear();
            self.drop_up_to(self.last_dropped);
        }
    }
}

/// What the keys of the tree begin with that all keys with the prefix `text` are of.
fn tree(text: &str) -> Option<&str> {
    text.find('/').map(|slash| &text[..=slash])
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
    use ringfence_wire::{Holder, LeaseId, PrincipalName};

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
        numbers_under("", history, revision)
    }

    fn numbers_under(prefix: &str, history: &History, revision: u64) -> Option<Vec<u64>> {
        Some(history.after(Revision(revision), prefix)?.map(|event| event.revision.0).collect())
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
        assert_eq!((history.began_after(), history.owners.bytes()), (Revision(9_000), 0));
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
        assert_eq!((history.before(), history.last(), history.owners.bytes()), (Revision(1), Revision(1), 0));
    }

    #[test]
    fn who_fills_the_history_loses_its_own_changes() {
        let by =
            |name: &str, revision, key: &str| Event { by: PrincipalName::new(name), ..event(revision, key) };
        let mut history = History::with_bounds(MOST, 10 * bytes_of(&by("few", 1, "few/a")));
        history.keep(by("few", 1, "few/a"));
        history.keep(by("few", 2, "x_all"));
        for revision in 3..=100 {
            history.keep(by("all", revision, if revision == 90 { "x_all" } else { "all/a" }));
        }
        history.keep(by("few", 101, "few/b"));
        assert_eq!(history.before(), Revision(0));
        assert_eq!(history.next_after(Revision(2)), Some(Revision(94)));
        let under = |prefix: &str, revision| {
            Some(
                numbers_under(prefix, &history, revision)?
                    .into_iter()
                    .filter(|number| *number < 50 || *number > 100)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(under("few/", 0), Some(vec![1, 2, 101]));
        assert_eq!(under("few/b", 2), Some(vec![101]));
        assert_eq!(under("other/", 0), Some(vec![1, 2, 101]));
        for prefix in ["all/", "all/a", "all", "a", ""] {
            assert_eq!(history.oldest(prefix), Revision(93), "{prefix}");
            assert_eq!((under(prefix, 92), under(prefix, 93)), (None, Some(vec![101])), "{prefix}");
        }
        assert_eq!((history.oldest("x_all"), history.oldest("x_all/")), (Revision(93), Revision(0)));
        // What nobody lost is not remembered for each of any number of trees.
        for revision in 102..102 + 2 * MOST_TREES as u64 {
            history.keep(by("all", revision, &format!("{revision}/a")));
            assert!(history.dropped.len() <= MOST_TREES && history.owners.bytes() <= history.most_bytes);
        }
        assert!(history.before() > Revision(101));
        let kept: usize =
            history.events.iter().filter_map(|(_, event)| Some(bytes_of(event.as_ref()?))).sum();
        assert_eq!(kept, history.owners.bytes());
        history.start_after(Revision(9_000));
        assert!(history.dropped.is_empty() && history.owners.bytes() == 0);
    }
}
