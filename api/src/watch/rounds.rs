//! What is told to whom: the rounds, and where each watch has come to. No time passes here, and nothing is sent.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringfence_lease::Event;
use ringfence_raft::History;
use ringfence_wire::{CutOff, CutOffReason, Revision};
use tokio::time::Instant;

use super::frame;
use super::group::{Follows, Group};
use crate::measure;

/// How much of the history one step reads at most: changes, and bytes of text that it makes of them.
const STEP: usize = 256;
const STEP_BYTES: usize = 64 << 10;
/// How much a step looks at, whether it makes any text of that or not: keys that are compared with a prefix, and prefixes
/// that are looked for. Each may be 512 bytes long.
const STEP_LOOKS: usize = 8_192;
/// The most text that is kept for slow readers, of all prefixes together.
const MOST_KEPT: usize = 32 << 20;
/// How many watches are woken at once: each writes to its client.
const AT_ONCE: usize = 32;
/// How many steps those who are behind may read, all together, until they are allowed more.
const READS: u32 = 8;
/// A client that was told nothing for so long is told where to go on from. Connections are closed that are silent for
/// longer, here and at proxies.
const QUIET: Duration = Duration::from_secs(15);
/// So is one that is so many changes behind, or a quarter of the history.
const FAR: u64 = 16_384;
const LEAST_FAR: u64 = 64;

/// All watches, by number.
#[derive(Default)]
pub(super) struct Rounds {
    /// Up to which change they have come.
    given: Revision,
    /// How far the next change has been looked through.
    within: Within,
    /// The prefixes whose groups have new text that is not a piece yet.
    fresh: Vec<Box<str>>,
    /// How much text is kept in all groups.
    kept: usize,
    watches: HashMap<u64, Watch>,
    /// The number of the next watch.
    next: u64,
    groups: HashMap<Box<str>, Group>,
    /// How many prefixes have each length, in bytes.
    lengths: BTreeMap<usize, usize>,
    /// Who is to be woken.
    sleepers: Vec<u64>,
    /// How many steps of the history may be read, and who waits for more.
    reads: u32,
    hungry: VecDeque<u64>,
}

/// A place in a change, and in the lengths of prefixes.
#[derive(Clone, Copy, Default)]
struct Within {
    /// How many of its keys were looked through,
    keys: usize,
    /// and of the next one all prefixes that are shorter.
    length: usize,
}

impl Within {
    fn is_begun(self) -> bool {
        self.keys > 0 || self.length > 0
    }
}

/// One watch.
struct Watch {
    prefix: Box<str>,
    /// All up to here was looked through for it.
    at: Revision,
    /// Up to where its client knows to have been told all, and since when.
    told: Revision,
    told_at: Instant,
    /// What is for it alone, and comes before anything else.
    own: Option<Bytes>,
    is_ended: bool,
    /// Whether it waits to be allowed to read.
    is_hungry: bool,
    /// Of the connection, once it has found nothing to send.
    waker: Option<Waker>,
}

/// What a watch has for its connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Text(Bytes),
    /// Nothing yet; it will be woken.
    Nothing,
    End,
}

impl Rounds {
    pub(super) fn count(&self) -> usize {
        self.watches.len()
    }

    /// A watch of what comes after number `after`, on keys that start with `prefix`.
    pub(super) fn enter(&mut self, prefix: &str, after: Revision, history: &History) -> u64 {
        if self.watches.is_empty() {
            self.given = history.last();
        }
        let number = self.next;
        self.next += 1;
        let (groups, given) = (&mut self.groups, self.given);
        let group = groups.entry(prefix.into()).or_insert_with(|| Group::new(given));
        if group.numbers.is_empty() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        group.numbers.insert(number);
        // The next change may have been looked through for shorter prefixes, or other keys.
        if self.within.is_begun()
            && let Some(event) = history.after(given).and_then(|mut events| events.next())
            && event.keys.iter().any(|(key, ..)| key.as_str().starts_with(prefix))
        {
            if group.is_fresh() {
                self.fresh.push(prefix.into());
            }
            group.add(event, prefix, given);
        }
        self.watches.insert(number, Watch::new(prefix.into(), after));
        number
    }

    pub(super) fn leave(&mut self, number: u64) {
        let Some(Watch { prefix, .. }) = self.watches.remove(&number) else { return };
        let Some(group) = self.groups.get_mut(&prefix) else { return };
        group.numbers.remove(&number);
        if group.numbers.is_empty() {
            self.kept -= group.bytes();
            self.groups.remove(&prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
    }

    /// Takes the next changes, or a part of one, as many as make a short step, of a round that goes up to number `upto`. Tells whether there
    /// are more.
    pub(super) fn step(&mut self, history: &History, upto: Revision) -> bool {
        let Some(events) = history.after(self.given) else {
            // The node took over a snapshot, or was kept from rounds for long: each finds out by itself where it is.
            (self.given, self.within, self.kept) = (history.last(), Within::default(), 0);
            self.groups.values_mut().for_each(|group| group.start_after(self.given));
            self.fresh.clear();
            self.sleepers = self.watches.keys().copied().collect();
            return false;
        };
        let (before, mut work) = (self.given, Work::default());
        for event in events.take_while(|event| event.revision <= upto).take(STEP) {
            if !self.find(event, before, &mut work) {
                // No piece has only a part of a change for some of its watches.
                return true;
            }
            (self.given, self.within) = (event.revision, Within::default());
            if work.is_enough() {
                break;
            }
        }
        let goes_on = self.given < upto;
        self.end_step(!goes_on);
        goes_on
    }

    /// Adds `event` to what each prefix of its keys has in a step of what comes after `before`, from where the last step came
    /// to in it. Tells whether it came to its end.
    fn find(&mut self, event: &Event, before: Revision, work: &mut Work) -> bool {
        for (index, (key, ..)) in event.keys.iter().enumerate().skip(self.within.keys) {
            let key = key.as_str();
            for &length in self.lengths.range(self.within.length..=key.len()).map(|(length, _)| length) {
                if work.is_enough() {
                    self.within = Within { keys: index, length };
                    return false;
                }
                work.looks += 1;
                // A prefix ends where a character does.
                let Some(prefix) = key.get(..length) else { continue };
                let Some(group) = self.groups.get_mut(prefix) else { continue };
                if group.is_fresh() {
                    self.fresh.push(prefix.into());
                }
                if let Some(bytes) = group.add(event, prefix, before) {
                    work.bytes += bytes;
                    work.looks += event.keys.len();
                }
            }
            self.within = Within { keys: index + 1, length: 0 };
        }
        true
    }

    /// Makes pieces of new text: where there is enough of it, or the round `is_through`.
    fn end_step(&mut self, is_through: bool) {
        for prefix in std::mem::take(&mut self.fresh) {
            let Some(group) = self.groups.get_mut(&prefix) else { continue };
            self.kept -= group.bytes();
            if group.end_step(self.given, is_through) {
                let mut all_at = self.given;
                for number in &group.numbers {
                    let Some(watch) = self.watches.get(number) else { continue };
                    all_at = all_at.min(watch.at);
                    if watch.waker.is_some() {
                        self.sleepers.push(*number);
                    }
                }
                group.told_up_to(all_at);
            } else if !group.is_fresh() {
                self.fresh.push(prefix);
            }
            self.kept += group.bytes();
        }
        self.forget_oldest();
    }

    /// Keeps the text of all groups below its bound. A watch that was not sent what is dropped reads the history.
    fn forget_oldest(&mut self) {
        while self.kept > MOST_KEPT {
            let oldest = self.groups.values().filter_map(Group::oldest).min().unwrap_or(self.given);
            // Half of the way, so that a few passes over all groups are enough however many pieces there are.
            let middle = Revision(oldest.0.midpoint(self.given.0));
            self.groups.values_mut().for_each(|group| group.told_up_to(middle));
            self.kept = self.groups.values().map(Group::bytes).sum();
        }
    }

    /// Wakes some watches that have something new. Returns how many.
    pub(super) fn wake_some(&mut self) -> u32 {
        let rest = self.sleepers.len().saturating_sub(AT_ONCE);
        let mut woken = 0;
        for number in self.sleepers.drain(rest..) {
            if let Some(watch) = self.watches.get_mut(&number) {
                watch.wake();
                woken += 1;
            }
        }
        woken
    }

    /// Whether there are more to be woken.
    pub(super) fn has_sleepers(&self) -> bool {
        !self.sleepers.is_empty()
    }

    /// Whether the history is about to go past where the rounds have come.
    pub(super) fn are_late(&self, history: &History) -> bool {
        let (last, before) = (history.last().0, history.before().0);
        last - self.given.0.min(last) > (last - before) / 2
    }

    /// What watch `number` sends next.
    pub(super) fn next(&mut self, number: u64, cx: &Context<'_>, history: &History) -> Next {
        let Some(watch) = self.watches.get_mut(&number) else { return Next::End };
        loop {
            if let Some(text) = watch.own.take() {
                return Next::Text(text);
            }
            if watch.is_ended {
                return Next::End;
            }
            let group = self.groups.get(&watch.prefix);
            match group.map_or(Follows::Nothing(self.given), |group| group.after(watch.at, self.given)) {
                Follows::Piece(text, upto) => {
                    watch.tell(upto);
                    return Next::Text(text);
                }
                Follows::Kept(upto) if self.reads > 0 => {
                    self.reads -= 1;
                    if let Some(text) = watch.read(upto, history) {
                        return Next::Text(text);
                    }
                }
                Follows::Kept(_) => {
                    if !std::mem::replace(&mut watch.is_hungry, true) {
                        self.hungry.push_back(number);
                    }
                    watch.waker = Some(cx.waker().clone());
                    return Next::Nothing;
                }
                Follows::Nothing(upto) => {
                    watch.at = watch.at.max(upto);
                    watch.waker = Some(cx.waker().clone());
                    return Next::Nothing;
                }
            }
        }
    }

    /// Whether anybody waits to be allowed to read.
    pub(super) fn are_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// Those who are behind may read on: by turns, some at a time.
    pub(super) fn feed(&mut self) {
        self.reads = READS;
        let mut fed = 0;
        while fed < READS
            && let Some(number) = self.hungry.pop_front()
        {
            if let Some(watch) = self.watches.get_mut(&number) {
                watch.is_hungry = false;
                watch.wake();
                fed += 1;
            }
        }
    }

    /// Where nothing else is told, tells from time to time where to go on from; and gives up those that the history has gone
    /// past, whether their clients will ever read again or not.
    pub(super) fn remind(&mut self, now: Instant, history: &History) {
        let kept = self.given.0.saturating_sub(history.before().0);
        let far = (kept / 4).clamp(LEAST_FAR, FAR);
        for (number, watch) in &mut self.watches {
            if watch.own.is_some() || watch.is_ended {
                continue;
            }
            match self.groups.get(&watch.prefix).map(|group| group.after(watch.at, self.given)) {
                Some(Follows::Nothing(_)) if watch.waker.is_some() && watch.at <= self.given => {
                    let behind = self.given.0.saturating_sub(watch.told.0);
                    if behind >= far || now.duration_since(watch.told_at) >= QUIET {
                        watch.tell(self.given);
                        watch.own = Some(frame::bookmark(self.given));
                        self.sleepers.push(*number);
                    }
                }
                Some(Follows::Kept(_)) if history.after(watch.at).is_none() => {
                    watch.cut_off(history);
                    self.sleepers.push(*number);
                }
                _ => {}
            }
        }
    }

    /// Ends all: their clients go on elsewhere from what they were told.
    pub(super) fn end(&mut self) {
        for watch in self.watches.values_mut() {
            (watch.own, watch.is_ended) = (None, true);
            watch.wake();
        }
    }
}

/// What a step has done.
#[derive(Default)]
struct Work {
    looks: usize,
    bytes: usize,
}

impl Work {
    fn is_enough(&self) -> bool {
        self.looks >= STEP_LOOKS || self.bytes >= STEP_BYTES
    }
}

impl Watch {
    fn new(prefix: Box<str>, after: Revision) -> Self {
        let head = Some(frame::head(after));
        Self {
            prefix,
            at: after,
            told: after,
            told_at: Instant::now(),
            own: head,
            is_ended: false,
            is_hungry: false,
            waker: None,
        }
    }

    /// With what is sent now all is told up to here.
    fn tell(&mut self, upto: Revision) {
        (self.at, self.told, self.told_at) = (upto, upto, Instant::now());
    }

    /// Reads a step of the history, as far as `upto`.
    fn read(&mut self, upto: Revision, history: &History) -> Option<Bytes> {
        let Some(events) = history.after(self.at) else {
            self.cut_off(history);
            return None;
        };
        let mut text = BytesMut::new();
        for event in events.take_while(|event| event.revision <= upto).take(STEP) {
            frame::put_event(&mut text, event, &self.prefix);
            self.at = event.revision;
            if text.len() >= STEP_BYTES {
                break;
            }
        }
        if text.is_empty() {
            return None;
        }
        self.tell(self.at);
        Some(text.freeze())
    }

    /// Ends it with an event that says so.
    fn cut_off(&mut self, history: &History) {
        let reason = match self.at < history.began_after() {
            true => CutOffReason::StateReplaced,
            false => CutOffReason::TooSlow,
        };
        measure::watches_cut_off_total(reason).increment(1);
        self.is_ended = true;
        self.own = Some(frame::cut_off(CutOff { revision: self.told, reason }));
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
