//! The agreed log, replayed once on a model of the table that shares no code with the product.
//!
//! The replay checks the laws that the log alone can break: revisions and tokens rise, fences are what the holders make
//! them, holders are compatible, waiters are served in order, and no lease is granted twice. It keeps every state that a
//! key and a lease went through, by revision, so that other checkers can compare each recorded answer with it.
//!
//! The logs may begin later than the run, behind a snapshot. Of the earlier holders those are known whose end is in the
//! log, and those that still hold at the end. Earlier waiters are not known: the queues of a key are judged only once the
//! key was granted exclusively, which proves that nobody else stood before.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ringfence_wire::{Key, LeaseId, Mode, Token};

use super::found::Found;
use super::tally::{Tally, mode};
use crate::history::{Change, ChangeName, End};

/// How long the id of an ended lease is remembered at least, in milliseconds of cluster time, which never runs faster than
/// real time. Until then no acquire grants it again.
pub(crate) const REMEMBERED_MS: u64 = 60_000;

/// All states of the table.
pub(crate) struct Log<'h> {
    /// The revision before the first change of the log, and of its last change.
    pub(super) after: u64,
    pub(super) last: u64,
    /// Whether it begins with the first change of the table.
    pub(super) is_whole: bool,
    pub(super) lines: BTreeMap<&'h Key, Line>,
    /// The stages of each lease, in order.
    pub(super) stages: BTreeMap<LeaseId, Vec<Stage<'h>>>,
    /// What the replay found about revisions, tokens and fences; about the holders of each key; about the order in which
    /// waiters are served; and about leases that are granted again.
    pub(super) numbers: Found,
    pub(super) holders: Found,
    pub(super) order: Found,
    pub(super) repeats: Found,
}

/// A lease while it waited, or while it held its keys with a token.
#[derive(Clone, Debug)]
pub(crate) struct Stage<'h> {
    /// The revisions.
    pub(crate) during: Range<u64>,
    pub(crate) token: Option<Token>,
    /// `None` if it began before the log.
    pub(crate) begun: Option<&'h Change>,
    /// `None` if it lasts.
    pub(crate) ended: Option<&'h Change>,
}

/// All states of one key, and its current holders and waiters.
#[derive(Default)]
pub(super) struct Line {
    /// Whether all its holders are known, and all its waiters.
    holders_known: bool,
    waiters_known: bool,
    held: Tally,
    live: BTreeMap<u64, Mode>,
    /// The waiters, by the revision at which they joined.
    queue: BTreeMap<u64, (LeaseId, Mode)>,
    steps: Vec<Step>,
    /// The revisions at which each token was live.
    pub(super) lives: BTreeMap<u64, Range<u64>>,
}

/// A key from one of its changes to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    from: u64,
    oldest: Option<u64>,
    pub(super) newest: Option<u64>,
    pub(super) holders: usize,
    pub(super) waiters: usize,
}

impl Step {
    /// Whether an exclusive claim would be granted.
    pub(super) fn is_free(&self) -> bool {
        self.holders == 0 && self.waiters == 0
    }
}

static NEVER_CHANGED: Line = Line {
    holders_known: true,
    waiters_known: true,
    held: Tally::EMPTY,
    live: BTreeMap::new(),
    queue: BTreeMap::new(),
    steps: Vec::new(),
    lives: BTreeMap::new(),
};

impl<'h> Log<'h> {
    pub(super) fn replay(end: &'h End) -> Self {
        let after = end.changes_after.0;
        let last = end.changes.iter().map(|change| change.revision.0).max().unwrap_or(after);
        let mut log = Self {
            after,
            last,
            is_whole: after == 0,
            lines: BTreeMap::new(),
            stages: BTreeMap::new(),
            numbers: Found::default(),
            holders: Found::default(),
            order: Found::default(),
            repeats: Found::default(),
        };
        log.seed(end);
        let (mut previous, mut freed) = (BTreeMap::new(), BTreeSet::new());
        let mut highest = after;
        for (n, change) in end.changes.iter().enumerate() {
            log.numbers_rise(change, highest);
            highest = highest.max(change.revision.0);
            log.one_grant_per_lease(previous.insert(change.lease_id, change), change);
            log.apply(change);
            if matches!(change.change, ChangeName::Ended | ChangeName::Left) {
                freed.extend(change.keys.iter().map(|changed| &changed.key));
            }
            // A release or expiry grants the next waiter in the same entry.
            if end.changes.get(n + 1).is_none_or(|next| next.index != change.index) {
                for key in std::mem::take(&mut freed) {
                    log.nobody_is_passed_over(key, change);
                }
            }
        }
        log
    }

    /// The state before the first change, as far as it is known.
    fn seed(&mut self, end: &'h End) {
        for view in &end.keys {
            let line = self.line(&view.key);
            line.holders_known = true;
            for holder in view.holders.iter().filter(|holder| holder.token.0 <= end.changes_after.0) {
                line.hold(holder.token.0, mode(holder.mode, holder.limit));
            }
        }
        for change in end.changes.iter().filter(|change| change.change == ChangeName::Ended) {
            if let Some(token) = change.token.filter(|token| token.0 <= end.changes_after.0) {
                for changed in &change.keys {
                    self.line(&changed.key).hold(token.0, changed.mode);
                }
                let stage = Stage { during: 0..u64::MAX, token: Some(token), begun: None, ended: None };
                self.stages.entry(change.lease_id).or_default().push(stage);
            }
        }
        self.lines.values_mut().for_each(|line| line.step(end.changes_after.0));
    }

    fn apply(&mut self, change: &'h Change) {
        let revision = change.revision.0;
        let joined = self.leave(change);
        let token = match change.change {
            ChangeName::Queued => None,
            ChangeName::Granted => {
                self.serve(change, joined);
                Some(change.token.unwrap_or(change.revision.into()))
            }
            ChangeName::Ended | ChangeName::Left => return self.step(change),
        };
        for changed in &change.keys {
            let line = self.line(&changed.key);
            match token {
                Some(token) => line.hold(token.0, changed.mode),
                None => drop(line.queue.insert(revision, (change.lease_id, changed.mode))),
            }
        }
        let stage = Stage { during: revision..u64::MAX, token, begun: Some(change), ended: None };
        self.stages.entry(change.lease_id).or_default().push(stage);
        self.step(change);
    }

    /// Ends the current stage of the lease. If it waited, returns when it joined the queues.
    fn leave(&mut self, change: &'h Change) -> Option<u64> {
        let stage =
            self.stages.get_mut(&change.lease_id)?.last_mut().filter(|stage| stage.ended.is_none())?;
        (stage.during.end, stage.ended) = (change.revision.0, Some(change));
        let (joined, token) = (stage.during.start, stage.token);
        for changed in &stage.begun.unwrap_or(change).keys {
            let line = self.line(&changed.key);
            match token {
                Some(token) => line.release(token.0, change.revision.0),
                None => drop(line.queue.remove(&joined)),
            }
        }
        token.is_none().then_some(joined)
    }

    fn step(&mut self, change: &'h Change) {
        let revision = change.revision.0;
        for changed in &change.keys {
            let line = self.line(&changed.key);
            line.step(revision);
            let fence = line.fence(revision);
            if line.holders_known && fence != changed.fence.0 {
                let (key, said) = (&changed.key, changed.fence);
                self.numbers.breach(
                    format!("in the log, the fence of {key} is {said} at revision {revision}, not {fence}"),
                    [],
                );
            }
        }
    }

    fn numbers_rise(&mut self, change: &Change, highest: u64) {
        let (revision, lease) = (change.revision, change.lease_id);
        self.numbers.saw("changes");
        if revision.0 <= highest {
            self.numbers.breach(
                format!("change {revision} of lease {lease} follows change {highest} in the log"),
                [],
            );
        }
        if change.change == ChangeName::Granted && change.token != Some(revision.into()) {
            let token = change.token.map_or("none".to_owned(), |token| token.to_string());
            self.numbers
                .breach(format!("the grant of lease {lease} is change {revision}, its token {token}"), []);
        }
    }

    /// Nothing → waits → granted → ended; and no grant after the end while the id is remembered.
    fn one_grant_per_lease(&mut self, previous: Option<&Change>, change: &Change) {
        use ChangeName::{Ended, Granted, Left, Queued};
        let Some(previous) = previous else { return };
        let is_wrong = match (previous.change, change.change) {
            (Ended | Left, Granted | Queued) => change.at_ms <= previous.at_ms.saturating_add(REMEMBERED_MS),
            (Queued, Granted | Left) | (Granted, Ended) => false,
            _ => true,
        };
        if is_wrong {
            let what = format!(
                "in the log, lease {} is {:?} at revision {} and then {:?} at {}",
                change.lease_id, previous.change, previous.revision, change.change, change.revision
            );
            self.repeats.breach(what, []);
        }
    }

    /// Checks a grant against the holders, and together with them against the waiters that `joined` earlier.
    fn serve(&mut self, change: &'h Change, joined: Option<u64>) {
        let (lease, revision) = (change.lease_id, change.revision);
        // A lease that was granted at once stood behind everybody, unless it had joined before the log began.
        let is_placed = joined.is_some() || self.is_whole;
        let place = joined.unwrap_or(if self.is_whole { revision.0 } else { 0 });
        self.order.saw(if joined.is_some() { "grants from the queue" } else { "grants at once" });
        for changed in &change.keys {
            let (key, mode) = (&changed.key, changed.mode);
            let line = self.line(key);
            let others: Vec<u64> = line.live.keys().copied().collect();
            let bears = line.held.bears(mode);
            let (earlier, waiters) = (line.earlier(place), line.queue.range(..place));
            let overtaken: Option<Vec<String>> =
                (bears && !earlier.bears(mode)).then(|| waiters.map(place_of).collect());
            line.waiters_known |= mode == Mode::Exclusive && is_placed;
            self.holders.saw("grants of a key");
            if !bears {
                let what =
                    format!("token {revision} was granted {key} while {others:?} held it: the log says so");
                self.holders.breach(what, []);
            } else if !others.is_empty() {
                self.holders.saw("grants beside others");
            }
            if let Some(waiters) = overtaken {
                let what = format!(
                    "lease {lease} was granted {key} at revision {revision} against those who waited before it: {}",
                    waiters.join(", ")
                );
                self.order.breach(what, []);
            }
        }
    }

    /// The first waiter of a key that somebody left must be blocked by something on one of its keys.
    fn nobody_is_passed_over(&mut self, key: &'h Key, last: &Change) {
        let Some((&place, &(lease, _))) = self.line(key).queue.first_key_value() else { return };
        let Some(queued) = self.stages.get(&lease).and_then(|stages| stages.last()?.begun) else { return };
        let lines =
            || queued.keys.iter().filter_map(|changed| Some((self.lines.get(&changed.key)?, changed.mode)));
        if !lines().all(|(line, _)| line.waiters_known) {
            return;
        }
        let fits = lines().all(|(line, mode)| line.earlier(place).bears(mode));
        self.order.saw("waiters that stayed first");
        if fits {
            let what = format!(
                "lease {lease} (place {place}) was passed over: after revision {} nothing blocks it on {key}",
                last.revision
            );
            self.order.breach(what, []);
        }
    }

    /// The states of a key, unless it may have had holders that are not known.
    pub(super) fn known_line(&self, key: &Key) -> Option<&Line> {
        match self.lines.get(key) {
            None => self.is_whole.then_some(&NEVER_CHANGED),
            Some(line) => line.holders_known.then_some(line),
        }
    }

    /// Whether the states at `revision` are known.
    pub(super) fn has(&self, revision: u64) -> bool {
        (self.after..=self.last).contains(&revision)
    }

    fn line(&mut self, key: &'h Key) -> &mut Line {
        let (is_whole, after) = (self.is_whole, self.after);
        self.lines.entry(key).or_insert_with(|| {
            let mut line = Line { holders_known: is_whole, waiters_known: is_whole, ..Line::default() };
            line.step(after);
            line
        })
    }
}

fn place_of((place, (lease, _)): (&u64, &(LeaseId, Mode))) -> String {
    format!("{lease} (place {place})")
}

impl Line {
    /// The key at `revision`.
    pub(super) fn at(&self, revision: u64) -> Step {
        let later = self.steps.partition_point(|step| step.from <= revision);
        later.checked_sub(1).map_or(Step::default(), |last| self.steps[last])
    }

    /// Whether the key was so at a revision of `span`, which is not empty.
    pub(super) fn was(&self, span: &Range<u64>, so: impl Fn(&Step) -> bool) -> bool {
        let later = self.steps.partition_point(|step| step.from <= span.start);
        so(&self.at(span.start)) || self.steps[later..].iter().take_while(|step| step.from < span.end).any(so)
    }

    /// The fence at `revision`.
    pub(super) fn fence(&self, revision: u64) -> u64 {
        self.at(revision).oldest.unwrap_or(revision + 1)
    }

    /// The revisions at which `token` was live.
    pub(super) fn life(&self, token: u64) -> Range<u64> {
        self.lives.get(&token).cloned().unwrap_or(0..0)
    }

    /// The revisions at which the fence was this one: while it was the oldest live token, and just before its grant if
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

    /// The holders, and the waiters that joined before `place`.
    fn earlier(&self, place: u64) -> Tally {
        let mut earlier = self.held.clone();
        self.queue.range(..place).for_each(|(_, &(_, mode))| earlier.add(mode));
        earlier
    }

    fn hold(&mut self, token: u64, mode: Mode) {
        self.held.add(mode);
        self.live.insert(token, mode);
        self.lives.insert(token, token..u64::MAX);
    }

    fn release(&mut self, token: u64, revision: u64) {
        if let Some(mode) = self.live.remove(&token) {
            self.held.remove(mode);
        }
        if let Some(life) = self.lives.get_mut(&token) {
            life.end = revision;
        }
    }

    fn step(&mut self, from: u64) {
        self.steps.push(Step {
            from,
            oldest: self.live.keys().next().copied(),
            newest: self.live.keys().next_back().copied(),
            holders: self.live.len(),
            waiters: self.queue.len(),
        });
    }
}
