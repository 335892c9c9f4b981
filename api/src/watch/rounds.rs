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
pub(super) const STEP: usize = 256;
pub(super) const STEP_BYTES: usize = 64 << 10;
/// How many watches are woken at once: each writes to its client, on the thread that everything else runs on.
const AT_ONCE: usize = 32;
/// How many steps those who are behind may read, all together, until they are allowed more.
pub(super) const READS: u32 = 8;
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
                        watch.told_at = now;
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
mod tests {
    use ringfence_wire::Key;

    use super::super::group::MOST_BYTES;
    use super::super::tests::event;
    use super::*;

    /// All that watch `number` has to send, and whether that is the end.
    fn sent(rounds: &mut Rounds, number: u64, history: &History) -> (String, bool) {
        let mut all = String::new();
        for _ in 0..10_000 {
            match rounds.next(number, &Context::from_waker(Waker::noop()), history) {
                Next::Text(text) => all += std::str::from_utf8(&text).unwrap(),
                Next::Nothing if rounds.are_hungry() => rounds.feed(),
                Next::Nothing => return (all, false),
                Next::End => return (all, true),
            }
        }
        panic!("it goes on for ever");
    }

    /// The numbers of the events that it has to send.
    fn told(rounds: &mut Rounds, number: u64, history: &History) -> Vec<u64> {
        let (text, _) = sent(rounds, number, history);
        let blocks = text.split("\n\n").filter(|block| block.contains("data: "));
        let ids = blocks.filter_map(|block| block.lines().find_map(|line| line.strip_prefix("id: ")));
        ids.map(|id| id.parse().unwrap()).collect()
    }

    fn keep(history: &mut History, revisions: std::ops::RangeInclusive<u64>, keys: &[&str]) {
        revisions.for_each(|revision| history.keep(event(revision, keys)));
    }

    fn round(rounds: &mut Rounds, history: &History) -> u32 {
        while rounds.step(history, history.last()) {}
        let mut woken = 0;
        while rounds.has_sleepers() {
            woken += rounds.wake_some();
        }
        woken
    }

    #[test]
    fn a_change_is_found_once_for_each_prefix_of_any_of_its_keys() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        let prefixes = ["", "a", "a/", "a/\u{e4}", "a/\u{e4}b", "b", "a", "a/x"];
        let numbers = prefixes.map(|prefix| rounds.enter(prefix, Revision(0), &history));
        for number in numbers {
            sent(&mut rounds, number, &history);
        }
        keep(&mut history, 1..=1, &["a/\u{e4}", "a/\u{e4}b", "a"]);
        keep(&mut history, 2..=2, &["c"]);
        keep(&mut history, 3..=3, &["b/a"]);
        assert_eq!((round(&mut rounds, &history), rounds.given), (7, Revision(3)));
        let all: Vec<_> = numbers.map(|number| told(&mut rounds, number, &history)).to_vec();
        assert_eq!(all, [vec![1, 2, 3], vec![1], vec![1], vec![1], vec![1], vec![3], vec![1], vec![]]);
        assert_eq!(round(&mut rounds, &history), 0);
    }

    #[test]
    fn not_all_are_woken_at_once() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        for _ in 0..AT_ONCE + 1 {
            let number = rounds.enter("a", Revision(0), &history);
            sent(&mut rounds, number, &history);
        }
        keep(&mut history, 1..=1, &["a"]);
        rounds.step(&history, Revision(1));
        assert_eq!((rounds.wake_some(), rounds.has_sleepers()), (AT_ONCE as u32, true));
        assert_eq!((rounds.wake_some(), rounds.has_sleepers()), (1, false));
        assert!(rounds.watches.values().all(|watch| watch.waker.is_none()));
    }

    #[test]
    fn a_round_is_made_of_short_steps_and_ends_where_it_was_to() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        rounds.enter("", Revision(0), &history);
        let steps = STEP as u64 + 1;
        keep(&mut history, 1..=steps + 5, &["a"]);
        assert_eq!((rounds.step(&history, Revision(steps)), rounds.given), (true, Revision(steps - 1)));
        assert_eq!((rounds.step(&history, Revision(steps)), rounds.given), (false, Revision(steps)));
        round(&mut rounds, &history);
        // Long ones are given out in smaller steps.
        keep(&mut history, steps + 6..=steps + 206, &[&"k".repeat(Key::MAX_BYTES)]);
        assert!(rounds.step(&history, history.last()));
        assert!(rounds.given < Revision(steps + 130), "{:?}", rounds.given);
    }

    #[test]
    fn one_that_begins_later_or_ahead_of_the_rounds_is_told_all_after_its_number_and_nothing_twice() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        let first = rounds.enter("a", Revision(0), &history);
        keep(&mut history, 1..=4, &["a"]);
        round(&mut rounds, &history);
        keep(&mut history, 5..=9, &["a"]);
        // Of these two the rounds have come to 4.
        let (behind, ahead) =
            (rounds.enter("a", Revision(2), &history), rounds.enter("a", Revision(7), &history));
        assert_eq!(told(&mut rounds, behind, &history), [3, 4]);
        assert_eq!(told(&mut rounds, ahead, &history), [0; 0]);
        assert_eq!(round(&mut rounds, &history), 2, "who waits is woken");
        assert_eq!(told(&mut rounds, behind, &history), [5, 6, 7, 8, 9]);
        assert_eq!(told(&mut rounds, ahead, &history), [8, 9]);
        assert_eq!(told(&mut rounds, first, &history), (1..=9).collect::<Vec<_>>());
        keep(&mut history, 10..=10, &["a"]);
        round(&mut rounds, &history);
        for number in [first, behind, ahead] {
            assert_eq!(told(&mut rounds, number, &history), [10]);
        }
        assert!(matches!(rounds.groups["a"].after(Revision(0), rounds.given), Follows::Kept(_)));
    }

    #[test]
    fn who_reads_slowly_has_the_rest_from_the_history() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        let number = rounds.enter("", Revision(0), &history);
        sent(&mut rounds, number, &history);
        let long = "k".repeat(Key::MAX_BYTES);
        let changes = 3 * (MOST_BYTES / Key::MAX_BYTES) as u64;
        keep(&mut history, 1..=changes, &[&long]);
        round(&mut rounds, &history);
        assert!(matches!(rounds.groups[""].after(Revision(0), rounds.given), Follows::Kept(_)));
        assert_eq!(told(&mut rounds, number, &history), (1..=changes).collect::<Vec<_>>());
    }

    #[test]
    fn those_who_are_behind_read_a_few_steps_together_until_they_may_go_on() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        keep(&mut history, 1..=20_000, &["a"]);
        let numbers = ["a", "x", "a"].map(|prefix| rounds.enter(prefix, Revision(0), &history));
        let next =
            |rounds: &mut Rounds, number| rounds.next(number, &Context::from_waker(Waker::noop()), &history);
        for number in numbers {
            assert!(matches!(next(&mut rounds, number), Next::Text(_)), "the head");
        }
        rounds.feed();
        assert!(matches!(next(&mut rounds, numbers[0]), Next::Text(text) if text.len() < 2 * STEP_BYTES));
        // One that finds nothing uses up the rest.
        assert_eq!(next(&mut rounds, numbers[1]), Next::Nothing);
        assert_eq!(rounds.watches[&numbers[1]].at, Revision((u64::from(READS) - 1) * STEP as u64));
        assert_eq!(next(&mut rounds, numbers[2]), Next::Nothing);
        assert!(rounds.are_hungry());
        rounds.feed();
        assert!(!rounds.are_hungry() && rounds.watches[&numbers[2]].waker.is_none(), "they are woken");
        assert!(matches!(next(&mut rounds, numbers[2]), Next::Text(_)));
    }

    #[test]
    fn one_that_the_history_has_gone_past_is_cut_off_when_it_reads_or_is_looked_for() {
        for (reads, is_replaced) in [(true, true), (false, true), (true, false), (false, false)] {
            let (mut rounds, mut history) = (Rounds::default(), History::default());
            let numbers = ["a", "a"].map(|prefix| rounds.enter(prefix, Revision(0), &history));
            keep(&mut history, 1..=1, &["a"]);
            round(&mut rounds, &history);
            let [slow, ended] = numbers.map(|number| told(&mut rounds, number, &history));
            assert_eq!((slow, ended), (vec![1], vec![1]));
            if is_replaced {
                history.start_after(Revision(90_000));
            } else {
                keep(&mut history, 2..=90_000, &["a"]);
            }
            // This one comes with what is kept now.
            let new = rounds.enter("a", Revision(90_000), &history);
            round(&mut rounds, &history);
            if !reads {
                rounds.remind(Instant::now(), &history);
                assert!(rounds.watches[&numbers[0]].is_ended && !rounds.watches[&new].is_ended);
            }
            let (text, is_ended) = sent(&mut rounds, numbers[0], &history);
            let reason = if is_replaced { "state-replaced" } else { "too-slow" };
            let end = format!("event: cut-off\ndata: {{\"revision\":1,\"reason\":\"{reason}\"}}\n\n");
            assert_eq!((text, is_ended), (end, true));
            assert_eq!(sent(&mut rounds, numbers[0], &history), (String::new(), true), "only once");
            keep(&mut history, 90_001..=90_001, &["a"]);
            round(&mut rounds, &history);
            assert_eq!(told(&mut rounds, new, &history), [90_001]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_told_nothing_for_long_or_while_much_happens_is_told_where_to_go_on_from() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        keep(&mut history, 1..=1, &["a"]);
        let number = rounds.enter("x", Revision(1), &history);
        sent(&mut rounds, number, &history);
        let mut reminded = |seconds, given, history: &mut History| {
            keep(history, history.last().0 + 1..=given, &["a"]);
            round(&mut rounds, history);
            rounds.remind(Instant::now() + Duration::from_secs(seconds), history);
            sent(&mut rounds, number, history).0
        };
        assert_eq!(reminded(14, 64, &mut history), "");
        assert_eq!(reminded(15, 64, &mut history), "id: 64\n\n");
        assert_eq!(reminded(0, 64 + 63, &mut history), "");
        assert_eq!(
            reminded(0, 64 + 64, &mut history),
            "id: 128\n\n",
            "a quarter of what is kept, or 64 if that is more"
        );
        assert_eq!(reminded(0, 40_000, &mut history), "id: 40000\n\n");
        assert_eq!(reminded(0, 49_000, &mut history), "");
        assert_eq!(reminded(0, 54_000, &mut history), "id: 54000\n\n");
    }

    #[test]
    fn one_that_has_something_to_send_is_not_reminded() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        let number = rounds.enter("a", Revision(0), &history);
        sent(&mut rounds, number, &history);
        keep(&mut history, 1..=1, &["a"]);
        round(&mut rounds, &history);
        rounds.remind(Instant::now() + 2 * QUIET, &history);
        let (text, _) = sent(&mut rounds, number, &history);
        assert!(text.starts_with("event: granted\nid: 1\n") && text.matches("id: ").count() == 1, "{text}");
    }

    #[test]
    fn rounds_are_late_where_half_of_the_history_came_since() {
        let (mut rounds, mut history) = (Rounds::default(), History::default());
        rounds.enter("a", Revision(0), &history);
        keep(&mut history, 1..=100, &["a"]);
        round(&mut rounds, &history);
        keep(&mut history, 101..=200, &["a"]);
        assert!(!rounds.are_late(&history));
        keep(&mut history, 201..=201, &["a"]);
        assert!(rounds.are_late(&history));
    }

    #[test]
    fn nothing_is_left_of_watches_that_have_gone() {
        let (mut rounds, history) = (Rounds::default(), History::default());
        let numbers = ["a", "b", "a", "abc"].map(|prefix| rounds.enter(prefix, Revision(0), &history));
        assert_eq!(rounds.lengths, BTreeMap::from([(1, 2), (3, 1)]));
        rounds.leave(numbers[0]);
        assert_eq!((rounds.lengths[&1], rounds.groups.len()), (2, 3));
        for number in numbers {
            rounds.leave(number);
        }
        assert!(rounds.watches.is_empty() && rounds.groups.is_empty() && rounds.lengths.is_empty());
    }
}
