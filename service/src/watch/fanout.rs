//! Watch fan-out: what each watch sends next. It does no I/O and never waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringfence_lease::Event;
use ringfence_raft::History;
use ringfence_wire::{CutOff, CutOffReason, Revision};
use tokio::time::Instant;

use super::encoder::Encoder;
use super::group::{Available, Group};
use crate::caller::Caller;
use crate::measure;

/// Limits of one step: changes read, and bytes of text encoded.
const STEP: usize = 256;
const STEP_BYTES: usize = 64 << 10;
/// Comparisons of a key with a prefix, and lookups of a prefix, in one step. Each may touch 512 bytes.
const STEP_LOOKS: usize = 8_192;
/// Bytes of text kept for slow readers, over all prefixes.
const MOST_KEPT: usize = 32 << 20;
/// Watches woken in one step: each writes to its client.
const AT_ONCE: usize = 32;
/// Steps of the history that all lagging watches may read together before their next turn.
const READS: u32 = 8;
/// After this long without an event a watch sends a bookmark: servers and proxies close silent connections.
const QUIET: Duration = Duration::from_secs(15);
/// A bookmark is also due after this many changes that did not match, or a quarter of the history if that is less.
const FAR: usize = 16_384;
const LEAST_FAR: usize = 64;

/// All watches, by number.
#[derive(Default)]
pub(super) struct Fanout<E> {
    encoder: E,
    /// The last change that was fanned out.
    position: Revision,
    /// The position within the next change.
    cursor: Cursor,
    /// Prefixes whose groups have text that is not a piece yet.
    fresh: Vec<Box<str>>,
    /// Bytes of text kept in all groups.
    kept: usize,
    watches: HashMap<u64, Watch>,
    next: u64,
    groups: HashMap<Box<str>, Group>,
    /// The number of prefixes of each length in bytes.
    lengths: BTreeMap<usize, usize>,
    /// Watches to wake.
    to_wake: Vec<u64>,
    /// Steps of the history that may still be read, and the watches that wait for more.
    reads: u32,
    blocked: VecDeque<u64>,
}

/// A position within a change.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Keys that are done.
    keys: usize,
    /// All prefixes of the next key that are shorter than this are done.
    length: usize,
}

impl Cursor {
    fn is_begun(self) -> bool {
        self.keys > 0 || self.length > 0
    }
}

/// One watch.
struct Watch {
    caller: Caller,
    prefix: Box<str>,
    /// The last change that was matched against the prefix.
    at: Revision,
    /// The last revision that the client was sent, and when.
    sent: Revision,
    sent_at: Instant,
    /// Text for this watch alone, sent before anything else.
    own: Option<Bytes>,
    /// Whether a bookmark is due. It is made when it is sent: until then it may become untrue.
    owes_bookmark: bool,
    is_ended: bool,
    /// Whether it waits for its turn to read the history.
    is_blocked: bool,
    /// Set when the connection has found nothing to send.
    waker: Option<Waker>,
}

/// What a watch sends next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Text(Bytes),
    /// Nothing yet; the waker is called when there is.
    Nothing,
    End,
}

impl<E: Encoder> Fanout<E> {
    pub(super) fn count(&self) -> usize {
        self.watches.len()
    }

    /// Adds a watch of `caller`, of the changes after `after` of keys that start with `prefix`.
    pub(super) fn enter(&mut self, caller: Caller, prefix: &str, after: Revision, history: &History) -> u64 {
        if self.watches.is_empty() {
            // The cursor of the last watch may be in the middle of a change that nobody watches any more.
            (self.position, self.cursor) = (history.last(), Cursor::default());
        }
        let number = self.next;
        self.next += 1;
        let (groups, position) = (&mut self.groups, self.position);
        let group = groups.entry(prefix.into()).or_insert_with(|| Group::new(position));
        if group.numbers.is_empty() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        group.numbers.insert(number);
        // The next change may have passed this prefix already.
        if self.cursor.is_begun()
            && let Some(event) = history.after(position, prefix).and_then(|mut events| events.next())
            && event.keys.iter().any(|(key, ..)| key.as_str().starts_with(prefix))
        {
            if group.is_fresh() {
                self.fresh.push(prefix.into());
            }
            group.add(self.encoder, event, prefix, position);
        }
        let head = self.encoder.head(after);
        self.watches.insert(number, Watch::new(caller, prefix.into(), after, head));
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

    /// Fans out the next changes up to `upto`, or a part of one, in one short step. Returns whether there are more.
    pub(super) fn step(&mut self, history: &History, upto: Revision) -> bool {
        let Some(events) = history.after(self.position, "") else {
            // A snapshot replaced the table, or fan-out lagged behind the history: each watch finds its own place.
            (self.position, self.cursor, self.kept) = (history.last(), Cursor::default(), 0);
            self.groups.values_mut().for_each(|group| group.start_after(self.position));
            self.fresh.clear();
            self.to_wake = self.watches.keys().copied().collect();
            return false;
        };
        // A task that was replaced in the middle of a round may go on with it.
        if upto <= self.position {
            return false;
        }
        let (before, mut work) = (self.position, Work::default());
        for event in events.take_while(|event| event.revision <= upto).take(STEP) {
            if !self.find(event, before, &mut work) {
                // A piece never holds a part of a change.
                return true;
            }
            (self.position, self.cursor) = (event.revision, Cursor::default());
            if work.is_enough() {
                break;
            }
        }
        if history.next_after(self.position).is_none_or(|next| next > upto) {
            // There may be revisions without a change.
            self.position = self.position.max(upto);
        }
        let goes_on = self.position < upto;
        self.end_step(!goes_on);
        goes_on
    }

    /// Adds `event` to the group of each prefix of its keys, from the position that the last step reached. The step covers
    /// what follows `before`. Returns whether all of the event is done.
    fn find(&mut self, event: &Event, before: Revision, work: &mut Work) -> bool {
        for (index, (key, ..)) in event.keys.iter().enumerate().skip(self.cursor.keys) {
            let key = key.as_str();
            for &length in self.lengths.range(self.cursor.length..=key.len()).map(|(length, _)| length) {
                if work.is_enough() {
                    self.cursor = Cursor { keys: index, length };
                    return false;
                }
                work.looks += 1;
                // A prefix ends where a character does.
                let Some(prefix) = key.get(..length) else { continue };
                let Some(group) = self.groups.get_mut(prefix) else { continue };
                if group.is_fresh() {
                    self.fresh.push(prefix.into());
                }
                if let Some(bytes) = group.add(self.encoder, event, prefix, before) {
                    work.bytes += bytes;
                    work.looks += event.keys.len();
                }
            }
            self.cursor = Cursor { keys: index + 1, length: 0 };
        }
        true
    }

    /// Turns new text into pieces, where there is enough of it or the round `is_through`.
    fn end_step(&mut self, is_through: bool) {
        for prefix in std::mem::take(&mut self.fresh) {
            let Some(group) = self.groups.get_mut(&prefix) else { continue };
            self.kept -= group.bytes();
            if group.end_step(self.position, is_through) {
                let mut all_at = self.position;
                for number in &group.numbers {
                    let Some(watch) = self.watches.get(number) else { continue };
                    all_at = all_at.min(watch.at);
                    if watch.waker.is_some() {
                        self.to_wake.push(*number);
                    }
                }
                group.sent_up_to(all_at);
            } else if !group.is_fresh() {
                self.fresh.push(prefix);
            }
            self.kept += group.bytes();
        }
        self.forget_oldest();
    }

    /// Bounds the text of all groups. A watch that still needs what is dropped reads the history.
    fn forget_oldest(&mut self) {
        while self.kept > MOST_KEPT {
            let oldest = self.groups.values().filter_map(Group::oldest).min().unwrap_or(self.position);
            // Halving needs few passes over the groups, however many pieces there are.
            let middle = Revision(oldest.0.midpoint(self.position.0));
            self.groups.values_mut().for_each(|group| group.sent_up_to(middle));
            self.kept = self.groups.values().map(Group::bytes).sum();
        }
    }

    /// Wakes some of the watches that have something to send. Returns how many.
    pub(super) fn wake_some(&mut self) -> u32 {
        let rest = self.to_wake.len().saturating_sub(AT_ONCE);
        let mut woken = 0;
        for number in self.to_wake.drain(rest..) {
            if let Some(watch) = self.watches.get_mut(&number) {
                watch.wake();
                woken += 1;
            }
        }
        woken
    }

    /// Whether more watches have to be woken.
    pub(super) fn has_any_to_wake(&self) -> bool {
        !self.to_wake.is_empty()
    }

    /// Whether the history is about to drop changes that were not fanned out.
    pub(super) fn are_late(&self, history: &History) -> bool {
        history.count_after(self.position) > history.count_after(history.before()) / 2
    }

    /// What watch `number` sends next, while this node `has_contact` or not. Without the `history`, which a thread that hangs may
    /// have, a watch that lags waits for its turn.
    pub(super) fn next(
        &mut self,
        number: u64,
        cx: &Context<'_>,
        has_contact: bool,
        history: Option<&History>,
    ) -> Next {
        let Some(watch) = self.watches.get_mut(&number) else { return Next::End };
        loop {
            if let Some(text) = watch.own.take() {
                return Next::Text(text);
            }
            if watch.is_ended {
                return Next::End;
            }
            let group = self.groups.get(&watch.prefix);
            match group
                .map_or(Available::Nothing(self.position), |group| group.after(watch.at, self.position))
            {
                Available::Piece(text, upto) => {
                    watch.mark_sent(upto);
                    return Next::Text(text);
                }
                Available::InHistory(upto) => {
                    let Some(history) = history.filter(|_| self.reads > 0) else {
                        if !std::mem::replace(&mut watch.is_blocked, true) {
                            self.blocked.push_back(number);
                        }
                        watch.waker = Some(cx.waker().clone());
                        return Next::Nothing;
                    };
                    self.reads -= 1;
                    if let Some(text) = watch.read(upto, history, self.encoder) {
                        return Next::Text(text);
                    }
                }
                Available::Nothing(upto) => {
                    watch.at = watch.at.max(upto);
                    let owes_bookmark = std::mem::take(&mut watch.owes_bookmark);
                    // Not before text that waits to be sent.
                    if owes_bookmark && has_contact && watch.at == self.position {
                        watch.mark_sent(watch.at);
                        return Next::Text(self.encoder.bookmark(watch.at));
                    }
                    watch.waker = Some(cx.waker().clone());
                    return Next::Nothing;
                }
            }
        }
    }

    /// Whether a watch waits for its turn to read the history.
    pub(super) fn has_blocked_readers(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Lets some lagging watches read on, by turns.
    pub(super) fn allow_reads(&mut self) {
        self.reads = READS;
        let mut woken = 0;
        while woken < READS
            && let Some(number) = self.blocked.pop_front()
        {
            if let Some(watch) = self.watches.get_mut(&number) {
                watch.is_blocked = false;
                watch.wake();
                woken += 1;
            }
        }
    }

    /// Up to here, all watches are sent what concerns them, or will be.
    pub(super) fn position(&self) -> Revision {
        self.position
    }

    /// Has watches send bookmarks where they are due, if this node `has_contact`, and cuts off watches whose place the history has
    /// dropped, whether or not their clients read.
    pub(super) fn send_bookmarks(&mut self, now: Instant, has_contact: bool, history: &History) {
        let left = history.count_after(self.position);
        let far = ((history.count_after(history.before()) - left) / 4).clamp(LEAST_FAR, FAR);
        for (number, watch) in &mut self.watches {
            if watch.own.is_some() || watch.is_ended || watch.owes_bookmark {
                continue;
            }
            match self.groups.get(&watch.prefix).map(|group| group.after(watch.at, self.position)) {
                Some(Available::Nothing(_))
                    if has_contact && watch.waker.is_some() && watch.at <= self.position =>
                {
                    let behind = history.count_after(watch.sent).saturating_sub(left);
                    if behind >= far || now.duration_since(watch.sent_at) >= QUIET {
                        watch.owes_bookmark = true;
                        self.to_wake.push(*number);
                    }
                }
                Some(Available::InHistory(_)) if history.after(watch.at, &watch.prefix).is_none() => {
                    watch.cut_off(history, self.encoder);
                    self.to_wake.push(*number);
                }
                _ => {}
            }
        }
    }

    /// Ends the watches of those who may not have them any more, under new rules.
    pub(super) fn end_denied(&mut self) {
        for watch in self.watches.values_mut() {
            match watch.caller.renewed() {
                None => continue,
                Some(Ok(caller)) if caller.allow_under(&watch.prefix).is_ok() => watch.caller = caller,
                Some(_) => {
                    (watch.own, watch.is_ended) = (None, true);
                    watch.wake();
                }
            }
        }
    }

    /// One without watches, which gives no number twice.
    pub(super) fn anew(self) -> Self {
        Self { next: self.next, encoder: self.encoder, ..Self::default() }
    }

    /// Ends all watches with an event: this node does not know what has changed lately.
    pub(super) fn end_without_contact(&mut self) {
        for (number, watch) in self.watches.iter_mut().filter(|(_, watch)| !watch.is_ended) {
            watch.end(CutOffReason::NoContact, self.encoder);
            self.to_wake.push(*number);
        }
    }

    /// Ends all watches: their clients resume at another node.
    pub(super) fn end(&mut self) {
        for watch in self.watches.values_mut() {
            (watch.own, watch.is_ended) = (None, true);
            watch.wake();
        }
    }
}

/// The work of one step.
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
    fn new(caller: Caller, prefix: Box<str>, after: Revision, head: Bytes) -> Self {
        Self {
            caller,
            prefix,
            at: after,
            sent: after,
            sent_at: Instant::now(),
            own: Some(head),
            owes_bookmark: false,
            is_ended: false,
            is_blocked: false,
            waker: None,
        }
    }

    /// What is sent now covers everything up to here.
    fn mark_sent(&mut self, upto: Revision) {
        (self.at, self.sent, self.sent_at) = (upto, upto, Instant::now());
        self.owes_bookmark = false;
    }

    /// Reads one step of the history, up to `upto`.
    fn read(&mut self, upto: Revision, history: &History, encoder: impl Encoder) -> Option<Bytes> {
        let Some(events) = history.after(self.at, &self.prefix) else {
            self.cut_off(history, encoder);
            return None;
        };
        let mut text = BytesMut::new();
        for event in events.take_while(|event| event.revision <= upto).take(STEP) {
            encoder.put_event(&mut text, event, &self.prefix);
            self.at = event.revision;
            if text.len() >= STEP_BYTES {
                break;
            }
        }
        if history.next_after(self.at).is_none_or(|next| next > upto) {
            self.at = self.at.max(upto);
        }
        if text.is_empty() {
            return None;
        }
        self.mark_sent(self.at);
        Some(text.freeze())
    }

    /// Ends the watch with an event that says why.
    fn cut_off(&mut self, history: &History, encoder: impl Encoder) {
        let reason = match self.at < history.began_after() {
            true => CutOffReason::StateReplaced,
            false => CutOffReason::TooSlow,
        };
        self.end(reason, encoder);
    }

    fn end(&mut self, reason: CutOffReason, encoder: impl Encoder) {
        measure::watch_cut_off(reason);
        self.is_ended = true;
        self.own = Some(encoder.cut_off(CutOff { revision: self.sent, reason }));
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
