//! All watches of a node, and the rounds in which they are told what is new.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;
use std::time::Duration;

use bytes::BytesMut;
use ringfence_lease::Event;
use ringfence_raft::{Handle, History, Progress};
use ringfence_wire::{CutOffReason, ProblemKind, Revision};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::frame;
use super::queue::{Next, Queue, STEP, STEP_BYTES};
use super::stream::Stream;
use crate::problems::Failed;

/// How long a round waits after the one before, so that changes gather; and for each watcher that that one woke, which
/// costs a system call and more, here and at its client. So few watchers are told at once, and a thousand that are told
/// all the time are told five times a second, and slow down who acquires by little.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_FOR_EACH: Duration = Duration::from_micros(200);
/// How often quiet and slow watchers are looked for.
const REMIND: Duration = Duration::from_secs(1);

/// The watches of this node.
pub(crate) struct Watchers {
    handle: Handle,
    draining: watch::Receiver<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether there are rounds.
    runs: bool,
    /// Up to which change they have come.
    given: Revision,
    queues: HashMap<u64, Queue>,
    /// Watches of what comes after a change that the rounds had not come to.
    ahead: Vec<u64>,
    /// The number of the next watch.
    next: u64,
    by_prefix: HashMap<Box<str>, Group>,
    /// How many prefixes have each length, in bytes.
    lengths: BTreeMap<usize, usize>,
}

/// The watches with one prefix.
#[derive(Default)]
struct Group {
    numbers: HashSet<u64>,
    /// What the round that is under way has for them so far, and its latest change.
    text: BytesMut,
    upto: Revision,
}

impl Watchers {
    pub(crate) fn new(handle: Handle, draining: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self { handle, draining, state: Mutex::default() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state().queues.len()
    }

    /// A watch of what comes after number `after`, or from now on, on keys that start with `prefix`.
    pub(crate) fn open(self: &Arc<Self>, prefix: String, after: Option<Revision>) -> Result<Stream, Failed> {
        // Before the history is looked at: nothing that comes after that is missed.
        let progress = self.handle.progress();
        let mut state = self.state();
        let number = self.handle.history(|history| {
            let after = after.unwrap_or(history.last());
            if history.after(after).is_none() {
                return Err(gone(after, history));
            }
            if !state.runs {
                state.given = history.last();
            }
            Ok(state.enter(prefix, after))
        })?;
        if !std::mem::replace(&mut state.runs, true) {
            tokio::spawn(Arc::clone(self).run(progress));
        }
        Ok(Stream { watchers: Arc::clone(self), number })
    }

    pub(super) fn next(&self, number: u64, cx: &Context<'_>) -> Next {
        let mut state = self.state();
        let given = state.given;
        match state.queues.get_mut(&number) {
            Some(queue) => self.handle.history(|history| queue.next(cx, given, history)),
            None => Next::End,
        }
    }

    pub(super) fn leave(&self, number: u64) {
        self.state().leave(number);
    }

    /// The rounds, until nobody watches any more.
    async fn run(self: Arc<Self>, mut progress: Progress) {
        let mut draining = self.draining.clone();
        let mut reminders = interval(REMIND);
        reminders.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let reminds = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => break,
                _ = reminders.tick() => true,
                () = progress.any() => false,
            };
            let mut woken = 0;
            loop {
                let round = self.round(reminds);
                woken += round.woken;
                if !round.goes_on {
                    break;
                }
                // Each is a short step on the thread that everything else runs on.
                yield_now().await;
            }
            {
                let mut state = self.state();
                if state.queues.is_empty() {
                    state.runs = false;
                    return;
                }
            }
            sleep(GATHER.max(GATHER_FOR_EACH * woken)).await;
        }
        let mut state = self.state();
        state.queues.values_mut().for_each(Queue::end);
        state.runs = false;
    }

    fn round(&self, reminds: bool) -> Round {
        let mut state = self.state();
        self.handle.history(|history| {
            let round = state.round(history);
            if reminds && !round.goes_on {
                state.remind(history);
            }
            round
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the watches are locked")
    }
}

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    /// How many watchers were told something.
    woken: u32,
    /// Whether there is more.
    goes_on: bool,
}

impl State {
    fn enter(&mut self, prefix: String, after: Revision) -> u64 {
        let number = self.next;
        self.next += 1;
        let group = self.by_prefix.entry(prefix.as_str().into()).or_default();
        if group.numbers.is_empty() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        group.numbers.insert(number);
        self.queues.insert(number, Queue::new(prefix, after));
        if after > self.given {
            self.ahead.push(number);
        }
        number
    }

    fn leave(&mut self, number: u64) {
        let Some(queue) = self.queues.remove(&number) else { return };
        let prefix = queue.prefix.as_str();
        let Some(group) = self.by_prefix.get_mut(prefix) else { return };
        group.numbers.remove(&number);
        if group.numbers.is_empty() {
            self.by_prefix.remove(prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
    }

    /// Gives out the next changes, as many as make a short step.
    fn round(&mut self, history: &History) -> Round {
        let Some(events) = history.after(self.given) else {
            // The node took over a snapshot: what led to it was never here.
            self.queues.values_mut().for_each(|queue| queue.cut_off(CutOffReason::StateReplaced));
            self.given = history.last();
            self.ahead.clear();
            return Round { woken: 0, goes_on: false };
        };
        let (before, mut bytes) = (self.given, 0);
        for event in events.take(STEP) {
            bytes += self.find(event);
            self.given = event.revision;
            if bytes >= STEP_BYTES {
                break;
            }
        }
        let mut woken = 0;
        for group in self.by_prefix.values_mut().filter(|group| !group.text.is_empty()) {
            let text = group.text.split().freeze();
            for number in &group.numbers {
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.give(&text, before, self.given);
                    woken += 1;
                }
            }
        }
        let goes_on = self.given != history.last();
        if !goes_on {
            for number in self.ahead.drain(..) {
                if let Some(queue) = self.queues.get_mut(&number) {
                    queue.wake();
                }
            }
        }
        Round { woken, goes_on }
    }

    /// Adds `event` to what each prefix of its keys has in this round, once. Gives how many bytes that made.
    fn find(&mut self, event: &Event) -> usize {
        let mut bytes = 0;
        for (key, ..) in &event.keys {
            let key = key.as_str();
            let lengths = self.lengths.keys().take_while(|length| **length <= key.len());
            // A prefix ends where a character does.
            for prefix in lengths.filter_map(|length| key.get(..*length)) {
                if let Some(group) = self.by_prefix.get_mut(prefix)
                    && group.upto != event.revision
                {
                    let before = group.text.len();
                    frame::put_event(&mut group.text, event, prefix);
                    group.upto = event.revision;
                    bytes += group.text.len() - before;
                }
            }
        }
        bytes
    }

    fn remind(&mut self, history: &History) {
        let now = Instant::now();
        for queue in self.queues.values_mut() {
            queue.remind(now, self.given, history);
        }
    }
}

fn gone(after: Revision, history: &History) -> Failed {
    let (before, last) = (history.before(), history.last());
    let detail = if after > last {
        format!(
            "the cluster has come to revision {last}, and not to {after}: list the keys, and watch from there"
        )
    } else {
        format!(
            "this node keeps what came after revision {before}, not {after}: list the keys, and watch from there"
        )
    };
    Failed::new(ProblemKind::HistoryGone, detail)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use ringfence_lease::Change;
    use ringfence_wire::{Key, LeaseId, Mode, Token};

    use super::*;

    fn event(revision: u64, keys: &[&str]) -> Event {
        Event {
            revision: Revision(revision),
            lease_id: LeaseId::from_u128(1).unwrap(),
            change: Change::Granted,
            token: Some(Token(revision)),
            keys: keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive, Token(1))).collect(),
            holder: None,
        }
    }

    /// What watch `number` has to send.
    fn sent(state: &mut State, number: u64, history: &History) -> String {
        let (mut all, given) = (String::new(), state.given);
        let queue = state.queues.get_mut(&number).unwrap();
        while let Next::Text(text) = queue.next(&Context::from_waker(Waker::noop()), given, history) {
            all += std::str::from_utf8(&text).unwrap();
        }
        all
    }

    #[test]
    fn a_change_is_found_once_for_each_prefix_of_any_of_its_keys() {
        let (mut state, mut history) = (State::default(), History::default());
        let prefixes = ["", "a", "a/", "a/\u{e4}", "a/\u{e4}b", "b", "a", "a/x"];
        let numbers: Vec<u64> =
            prefixes.iter().map(|prefix| state.enter((*prefix).to_owned(), Revision(0))).collect();
        for number in &numbers {
            sent(&mut state, *number, &history);
        }
        history.keep(event(1, &["a/\u{e4}", "a/\u{e4}b", "a"]));
        history.keep(event(2, &["c"]));
        history.keep(event(3, &["b/a"]));
        let round = state.round(&history);
        assert_eq!((round, state.given), (Round { woken: 7, goes_on: false }, Revision(3)));
        let ids = |text: String| {
            let ids = text.lines().filter_map(|line| line.strip_prefix("id: ").map(str::to_owned));
            ids.collect::<Vec<_>>().join(" ")
        };
        let told: Vec<_> = numbers.iter().map(|number| ids(sent(&mut state, *number, &history))).collect();
        assert_eq!(told, ["1 2 3", "1", "1", "1", "1", "3", "1", ""]);
    }

    #[test]
    fn a_round_is_a_short_step_and_says_whether_there_is_more() {
        let (mut state, mut history) = (State::default(), History::default());
        state.enter(String::new(), Revision(0));
        let steps = STEP as u64 + 1;
        (1..=steps).for_each(|revision| history.keep(event(revision, &["a"])));
        assert_eq!((state.round(&history).goes_on, state.given), (true, Revision(steps - 1)));
        assert_eq!((state.round(&history).goes_on, state.given), (false, Revision(steps)));
        // Long ones are given out in smaller steps.
        let long = "k".repeat(Key::MAX_BYTES);
        (1..=200).for_each(|n| history.keep(event(steps + n, &[&long])));
        assert!(state.round(&history).goes_on);
        assert!(state.given < Revision(steps + 130), "{:?}", state.given);
    }

    #[test]
    fn who_comes_ahead_of_the_rounds_waits_for_them_and_is_told_what_follows() {
        let (mut state, mut history) = (State::default(), History::default());
        let first = state.enter(String::new(), Revision(0));
        sent(&mut state, first, &history);
        (1..=3).for_each(|revision| history.keep(event(revision, &["a"])));
        let second = state.enter(String::new(), Revision(2));
        assert!(!sent(&mut state, second, &history).contains("data:"));
        state.round(&history);
        assert!(state.ahead.is_empty());
        let ids = |text: String| text.matches("\ndata:").count();
        assert_eq!(ids(sent(&mut state, first, &history)), 3);
        let text = sent(&mut state, second, &history);
        assert!(text.contains("id: 3\n") && ids(text) == 1);
        history.keep(event(4, &["a"]));
        state.round(&history);
        assert_eq!(ids(sent(&mut state, second, &history)), 1);
    }

    #[test]
    fn nothing_is_left_of_watches_that_have_gone() {
        let mut state = State::default();
        let numbers = ["a", "b", "a", "abc"].map(|prefix| state.enter(prefix.to_owned(), Revision(0)));
        assert_eq!(state.lengths, BTreeMap::from([(1, 2), (3, 1)]));
        state.leave(numbers[0]);
        assert_eq!((state.lengths[&1], state.by_prefix.len()), (2, 3));
        for number in numbers {
            state.leave(number);
        }
        assert!(state.queues.is_empty() && state.by_prefix.is_empty() && state.lengths.is_empty());
    }

    #[test]
    fn where_a_snapshot_takes_the_place_of_changes_every_watch_is_cut_off() {
        let (mut state, mut history) = (State::default(), History::default());
        let number = state.enter(String::new(), Revision(0));
        sent(&mut state, number, &history);
        history.start_after(Revision(7));
        state.round(&history);
        assert_eq!(state.given, Revision(7));
        let text = sent(&mut state, number, &history);
        assert!(text.ends_with("data: {\"revision\":0,\"reason\":\"state-replaced\"}\n\n"), "{text}");
        // Who comes now is told what follows.
        let number = state.enter(String::new(), Revision(7));
        sent(&mut state, number, &history);
        history.keep(event(8, &["a"]));
        state.round(&history);
        assert!(sent(&mut state, number, &history).contains("id: 8\n"));
    }
}
