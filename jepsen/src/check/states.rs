//! The states that the table went through, by revision, as the changes in the logs tell them.
//!
//! The logs may begin later than the run. What was granted before is then known only if its end stands in the logs, or if
//! it is still held in the end. That is all of it, for a key that was read in the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use ringfence_wire::{Key, LeaseId};

use crate::history::{ChangeName, History};

/// All states of a table.
pub(super) struct States<'h> {
    /// Before the first change that is known.
    pub(super) after: u64,
    /// The last change that is known.
    pub(super) last: u64,
    /// Nothing was changed before the first change that is known.
    pub(super) whole: bool,
    keys: HashMap<&'h Key, Line>,
    leases: HashMap<LeaseId, Vec<Stage>>,
}

/// All states of a key.
#[derive(Default)]
pub(super) struct Line {
    /// Whether all are known that held it before the first change that is known.
    is_known: bool,
    /// By revision.
    steps: Vec<Step>,
    /// From which revision on each token was live, and to the one that ended it.
    lives: BTreeMap<u64, Range<u64>>,
    live: BTreeSet<u64>,
    waiters: usize,
}

static NEVER_CHANGED: Line =
    Line { is_known: true, steps: Vec::new(), lives: BTreeMap::new(), live: BTreeSet::new(), waiters: 0 };

/// A key from one of its changes to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: u64,
    pub(super) oldest: Option<u64>,
    pub(super) newest: Option<u64>,
    pub(super) holders: usize,
    pub(super) waiters: usize,
}

/// A time of a lease, by revision: live with a token, or waiting.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) during: Range<u64>,
    pub(super) token: Option<u64>,
}

impl<'h> States<'h> {
    pub(super) fn of(history: &'h History) -> Self {
        let end = &history.end;
        let after = end.changes_after.0;
        let mut changes: Vec<_> = end.changes.iter().collect();
        changes.sort_by_key(|change| change.revision);
        let first_seen = history.sights.iter().map(|sight| sight.revision.0).min();
        let mut states = Self {
            after,
            last: changes.last().map_or(after, |change| change.revision.0),
            whole: after == 0 || first_seen.is_some_and(|first| after <= first),
            keys: end
                .keys
                .iter()
                .map(|view| (&view.key, Line { is_known: true, ..Line::default() }))
                .collect(),
            leases: HashMap::new(),
        };
        for view in &end.keys {
            for holder in view.holders.iter().filter(|holder| holder.token.0 <= after) {
                states.keys.entry(&view.key).or_default().hold(holder.token.0);
            }
        }
        for change in &changes {
            if let (ChangeName::Ended, Some(token)) = (change.change, change.token)
                && token.0 <= after
            {
                for changed in &change.keys {
                    states.keys.entry(&changed.key).or_default().hold(token.0);
                }
                let stage = Stage { during: 0..u64::MAX, token: Some(token.0) };
                states.leases.entry(change.lease_id).or_default().push(stage);
            }
        }
        for line in states.keys.values_mut() {
            line.step(after);
        }
        let mut waiting = HashSet::new();
        for change in changes {
            let revision = change.revision.0;
            let stages = states.leases.entry(change.lease_id).or_default();
            if let Some(last) = stages.last_mut() {
                last.during.end = last.during.end.min(revision);
            }
            let (was_waiting, token) = match (change.change, change.token) {
                (ChangeName::Queued, _) => {
                    stages.push(Stage { during: revision..u64::MAX, token: None });
                    (!waiting.insert(change.lease_id), None)
                }
                (ChangeName::Granted, Some(token)) => {
                    stages.push(Stage { during: revision..u64::MAX, token: Some(token.0) });
                    (waiting.remove(&change.lease_id), Some(token.0))
                }
                (_, token) => (waiting.remove(&change.lease_id), token.map(|token| token.0)),
            };
            for changed in &change.keys {
                let line = states.keys.entry(&changed.key).or_default();
                line.waiters -= usize::from(was_waiting && line.waiters > 0);
                match (change.change, token) {
                    (ChangeName::Queued, _) => line.waiters += 1,
                    (ChangeName::Granted, Some(token)) => line.hold(token),
                    (ChangeName::Ended, Some(token)) => line.end(token, revision),
                    _ => {}
                }
                line.step(revision);
            }
        }
        states
    }

    /// The states of `key`, unless it may have had holders that are not known.
    pub(super) fn line(&self, key: &Key) -> Option<&Line> {
        match self.keys.get(key) {
            None if self.whole => Some(&NEVER_CHANGED),
            line => line.filter(|line| self.whole || line.is_known),
        }
    }

    /// Whether the states at `revision` are known.
    pub(super) fn has(&self, revision: u64) -> bool {
        self.after <= revision && revision <= self.last
    }

    /// The stages of a lease, in order.
    pub(super) fn stages(&self, lease: LeaseId) -> &[Stage] {
        self.leases.get(&lease).map_or(&[], Vec::as_slice)
    }
}

impl Line {
    /// The key at `revision`.
    pub(super) fn at(&self, revision: u64) -> Step {
        let later = self.steps.partition_point(|step| step.from <= revision);
        later.checked_sub(1).map_or(Step::default(), |index| self.steps[index])
    }

    /// The fence at `revision`.
    pub(super) fn fence(&self, revision: u64) -> u64 {
        self.at(revision).oldest.unwrap_or(revision + 1)
    }

    /// The revisions at which `token` was live.
    pub(super) fn life(&self, token: u64) -> Range<u64> {
        self.lives.get(&token).cloned().unwrap_or(0..0)
    }

    /// The last token granted up to `revision`.
    pub(super) fn last_granted(&self, revision: u64) -> Option<u64> {
        self.lives.range(..=revision).next_back().map(|(&token, _)| token)
    }

    /// The revisions at which the fence was this one: where it was the oldest live token, and just before its grant, if
    /// nobody held the key then.
    pub(super) fn with_fence(&self, fence: u64) -> Range<u64> {
        let Some(before) = fence.checked_sub(1) else { return 0..0 };
        let first = self.steps.partition_point(|step| step.oldest.map_or(step.from < fence, |o| o < fence));
        let past = self.steps.partition_point(|step| step.oldest.map_or(step.from < fence, |o| o <= fence));
        let held = match self.steps.get(first) {
            Some(step) if first < past => step.from..self.steps.get(past).map_or(u64::MAX, |next| next.from),
            _ => fence..fence,
        };
        if self.at(before).oldest.is_none() { before..held.end } else { held }
    }

    fn hold(&mut self, token: u64) {
        self.live.insert(token);
        self.lives.insert(token, token..u64::MAX);
    }

    fn end(&mut self, token: u64, revision: u64) {
        self.live.remove(&token);
        if let Some(life) = self.lives.get_mut(&token) {
            life.end = revision;
        }
    }

    fn step(&mut self, from: u64) {
        self.steps.push(Step {
            from,
            oldest: self.live.first().copied(),
            newest: self.live.last().copied(),
            holders: self.live.len(),
            waiters: self.waiters,
        });
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::Revision;

    use super::*;
    use crate::check::scene::{change, key, lease, view};
    use ChangeName::{Ended, Granted, Queued};

    #[test]
    fn the_states_of_a_key_follow_from_its_changes() {
        let mut history = History::default();
        history.end.changes = vec![
            change(3, 1, Granted, Some(3), 3),
            change(4, 2, Queued, None, 3),
            change(6, 1, Ended, Some(3), 7),
            change(7, 2, Granted, Some(7), 7),
            change(9, 2, Ended, Some(7), 10),
        ];
        let states = States::of(&history);
        let line = states.line(&key()).unwrap();
        let fences: Vec<u64> = (0..11).map(|revision| line.fence(revision)).collect();
        assert_eq!(fences, [1, 2, 3, 3, 3, 3, 7, 7, 7, 10, 11]);
        for fence in 1..11 {
            let from_fences = (0..11).filter(|&r| fences[r as usize] == fence);
            let told: Vec<u64> = line.with_fence(fence).take_while(|&r| r < 11).collect();
            assert_eq!(from_fences.collect::<Vec<_>>(), told, "fence {fence}");
        }
        assert_eq!(line.at(5), Step { from: 4, oldest: Some(3), newest: Some(3), holders: 1, waiters: 1 });
        assert_eq!((line.life(3), line.life(7), line.life(8)), (3..6, 7..9, 0..0));
        let stages: Vec<_> = states.stages(lease(2)).iter().map(|s| (s.during.clone(), s.token)).collect();
        assert_eq!(stages, [(4..7, None), (7..9, Some(7))]);
        assert!(states.has(9) && !states.has(10));
    }

    #[test]
    fn who_held_a_key_before_the_logs_begin_is_known_where_it_was_read_in_the_end() {
        let mut history = History::default();
        history.end.changes_after = Revision(5);
        history.end.changes = vec![change(6, 1, Ended, Some(2), 4)];
        assert!(States::of(&history).line(&key()).is_none(), "another one may hold it all the time");
        history.end.keys = vec![view(6, 4, &[4], 0)];
        let states = States::of(&history);
        let line = states.line(&key()).unwrap();
        assert_eq!((line.at(5).holders, line.fence(5), line.fence(6)), (2, 2, 4));
        assert!(!states.has(4));
    }
}
