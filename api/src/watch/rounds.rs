//! What is told to whom: the rounds, and where each watch has come to. No time passes here, and nothing is sent.

use std::collections::{BTreeMap, HashMap};
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

/// How much of the history one step reads at most.
const STEP: usize = 256;
const STEP_BYTES: usize = 64 << 10;
/// How many watches are woken at once: each writes to its client, on the thread that everything else runs on.
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
    hungry: Vec<u64>,
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
        self.watches.insert(number, Watch::new(prefix.into(), after));
        number
    }

    pub(super) fn leave(&mut self, number: u64) {
        let Some(Watch { prefix, .. }) = self.watches.remove(&number) else { return };
        let Some(group) = self.groups.get_mut(&prefix) else { return };
        group.numbers.remove(&number);
        if group.numbers.is_empty() {
            self.groups.remove(&prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
    }

    /// Takes the next changes, as many as make a short step, of a round that goes up to number `upto`. Tells whether there
    /// are more.
    pub(super) fn step(&mut self, history: &History, upto: Revision) -> bool {
        let Some(events) = history.after(self.given) else {
            // The node took over a snapshot, or was kept from rounds for long: each finds out by itself where it is.
            self.given = history.last();
            self.groups.values_mut().for_each(|group| group.start_after(self.given));
            self.sleepers = self.watches.keys().copied().collect();
            return false;
        };
        let (before, mut bytes) = (self.given, 0);
        for event in events.take_while(|event| event.revision <= upto).take(STEP) {
            bytes += find(event, before, &self.lengths, &mut self.groups);
            self.given = event.revision;
            if bytes >= STEP_BYTES {
                break;
            }
        }
        let goes_on = self.given < upto;
        for group in self.groups.values_mut() {
            if !group.end_step(self.given, !goes_on) {
                continue;
            }
            let mut all_at = self.given;
            for number in &group.numbers {
                let Some(watch) = self.watches.get(number) else { continue };
                all_at = all_at.min(watch.at);
                if watch.waker.is_some() {
                    self.sleepers.push(*number);
                }
            }
            group.told_up_to(all_at);
        }
        goes_on
    }

    /// Wakes some of those for whom there is something new. Gives how many.
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
                    self.hungry.push(number);
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

    /// Those who are behind may read on.
    pub(super) fn feed(&mut self) {
        self.reads = READS;
        for number in self.hungry.drain(..) {
            if let Some(watch) = self.watches.get_mut(&number) {
                watch.wake();
            }
        }
    }

    /// Where nothing else is told, tells from time to time where to go on from; and gives up those that the history has gone
    /// past, whether their clients will ever read again or not.
    pub(super) fn remind(&mut self, now: Instant, history: &History) {
        let kept = self.given.0.saturating_sub(history.before().0);
        let far = (kept / 4).clamp(LEAST_FAR, FAR);
        for watch in self.watches.values_mut().filter(|watch| watch.own.is_none() && !watch.is_ended) {
            match self.groups.get(&watch.prefix).map(|group| group.after(watch.at, self.given)) {
                Some(Follows::Nothing(_)) if watch.waker.is_some() && watch.at <= self.given => {
                    let behind = self.given.0.saturating_sub(watch.told.0);
                    if behind >= far || now.duration_since(watch.told_at) >= QUIET {
                        watch.tell(self.given);
                        watch.put(frame::bookmark(self.given));
                    }
                }
                Some(Follows::Kept(_)) if history.after(watch.at).is_none() => watch.cut_off(history),
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

/// Adds `event` to what each prefix of its keys has in a step of what comes after `before`. Gives how many bytes that made.
fn find(
    event: &Event,
    before: Revision,
    lengths: &BTreeMap<usize, usize>,
    groups: &mut HashMap<Box<str>, Group>,
) -> usize {
    let mut bytes = 0;
    for (key, ..) in &event.keys {
        let key = key.as_str();
        let lengths = lengths.keys().take_while(|length| **length <= key.len());
        // A prefix ends where a character does.
        for prefix in lengths.filter_map(|length| key.get(..*length)) {
            if let Some(group) = groups.get_mut(prefix) {
                bytes += group.add(event, prefix, before);
            }
        }
    }
    bytes
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
        self.put(frame::cut_off(CutOff { revision: self.told, reason }));
    }

    fn put(&mut self, own: Bytes) {
        self.own = Some(own);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
