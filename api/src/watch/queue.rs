use std::collections::VecDeque;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringfence_raft::History;
use ringfence_wire::{CutOff, CutOffReason, Revision};
use tokio::time::Instant;

use super::frame;
use crate::measure;

/// The most bytes that wait in a queue: a round's at least.
pub(super) const MOST_BYTES: usize = 256 << 10;
/// How much of the history one step reads at most.
pub(super) const STEP: usize = 256;
pub(super) const STEP_BYTES: usize = 64 << 10;

/// A client that was told nothing for so long is told where to go on from. Connections are closed that are silent for
/// longer, here and at proxies.
const QUIET: Duration = Duration::from_secs(15);
/// So is one that is so many changes behind: a quarter of the history.
const FAR: u64 = 16_384;

/// One watch: what is to be sent to its client next, and where it gets what follows.
pub(super) struct Queue {
    pub(super) prefix: String,
    pieces: VecDeque<Piece>,
    bytes: usize,
    phase: Phase,
    /// Everything up to here was told.
    told: Revision,
    /// When anything was told last.
    told_at: Instant,
    /// Of the connection, once it has found nothing to send.
    waker: Option<Waker>,
}

/// Some events, and the number up to which all is told with them.
struct Piece {
    text: Bytes,
    upto: Revision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What was given out is in the queue, and what will be will come there.
    Live,
    /// What comes after this number has to be read from the history.
    Behind(Revision),
    /// What is left in the queue is the last.
    Ended,
}

/// What a queue has for its connection.
pub(super) enum Next {
    Text(Bytes),
    /// Nothing yet; it will be woken.
    Nothing,
    /// Nothing of what was looked through: to be asked again, after others had their turn.
    Again,
    End,
}

impl Queue {
    /// A watch of what comes after number `after`.
    pub(super) fn new(prefix: String, after: Revision) -> Self {
        let head = Piece { text: frame::head(after), upto: after };
        Self {
            prefix,
            bytes: head.text.len(),
            pieces: VecDeque::from([head]),
            phase: Phase::Behind(after),
            told: after,
            told_at: Instant::now(),
            waker: None,
        }
    }

    /// What to send next. `given` is up to where the rounds have come.
    pub(super) fn next(&mut self, cx: &Context<'_>, given: Revision, history: &History) -> Next {
        if self.pieces.is_empty()
            && let Phase::Behind(from) = self.phase
            && from <= given
        {
            match self.read(from, given, history) {
                Some(true) => {}
                Some(false) => return Next::Again,
                None => self.cut_off(CutOffReason::TooSlow),
            }
        }
        match self.pieces.pop_front() {
            Some(Piece { text, upto }) => {
                self.bytes -= text.len();
                (self.told, self.told_at) = (upto, Instant::now());
                Next::Text(text)
            }
            None if self.phase == Phase::Ended => Next::End,
            None => {
                self.waker = Some(cx.waker().clone());
                Next::Nothing
            }
        }
    }

    /// Reads a step of the history on from number `from`, as far as the rounds have come; `None` where it has gone past.
    /// Tells whether there is no more, or something to send.
    fn read(&mut self, from: Revision, given: Revision, history: &History) -> Option<bool> {
        let (mut text, mut upto) = (BytesMut::new(), from);
        for event in history.after(from)?.take_while(|event| event.revision <= given).take(STEP) {
            frame::put_event(&mut text, event, &self.prefix);
            upto = event.revision;
            if text.len() >= STEP_BYTES {
                break;
            }
        }
        self.phase = if upto == given { Phase::Live } else { Phase::Behind(upto) };
        if text.is_empty() {
            return Some(upto == given);
        }
        self.put(text.freeze(), upto);
        Some(true)
    }

    /// A round gives out what concerns this watch of the changes after `before`, up to `given`.
    pub(super) fn give(&mut self, text: &Bytes, before: Revision, given: Revision) {
        if self.phase != Phase::Live {
            return;
        }
        if self.bytes + text.len() > MOST_BYTES {
            self.phase = Phase::Behind(before);
        } else {
            self.put(text.clone(), given);
        }
    }

    /// Where nothing else is told, tells from time to time where to go on from; and gives up one that the history has gone
    /// past, whether its client will ever read again or not.
    pub(super) fn remind(&mut self, now: Instant, given: Revision, history: &History) {
        match self.phase {
            Phase::Live if self.pieces.is_empty() => {
                let is_far = given.0.saturating_sub(self.told.0) >= FAR;
                if is_far || now.duration_since(self.told_at) >= QUIET {
                    self.put(frame::bookmark(given), given);
                }
            }
            Phase::Behind(from) if from < history.before() => self.cut_off(CutOffReason::TooSlow),
            _ => {}
        }
    }

    /// Ends it with an event that says so.
    pub(super) fn cut_off(&mut self, reason: CutOffReason) {
        if self.phase == Phase::Ended {
            return;
        }
        measure::watches_cut_off_total(reason).increment(1);
        self.end();
        self.put(frame::cut_off(CutOff { revision: self.told, reason }), self.told);
    }

    /// Ends it: its client goes on elsewhere from what it was told.
    pub(super) fn end(&mut self) {
        self.pieces.clear();
        (self.bytes, self.phase) = (0, Phase::Ended);
        self.wake();
    }

    fn put(&mut self, text: Bytes, upto: Revision) {
        self.bytes += text.len();
        self.pieces.push_back(Piece { text, upto });
        self.wake();
    }

    /// There may be something to send.
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_lease::{Change, Event};
    use ringfence_wire::{Key, LeaseId, Mode, Token};

    use super::*;

    /// Of changes 1 to `last`, each of `key`.
    fn history(last: u64, key: &str) -> History {
        let mut history = History::default();
        for revision in 1..=last {
            history.keep(Event {
                revision: Revision(revision),
                lease_id: LeaseId::from_u128(1).unwrap(),
                change: Change::Granted,
                token: Some(Token(revision)),
                keys: vec![(Key::new(key).unwrap(), Mode::Exclusive, Token(revision))],
                holder: None,
            });
        }
        history
    }

    fn next(queue: &mut Queue, given: u64, history: &History) -> Next {
        queue.next(&Context::from_waker(Waker::noop()), Revision(given), history)
    }

    /// All that it has to send now, and whether that is the end.
    fn sent(queue: &mut Queue, given: u64, history: &History) -> (String, bool) {
        let mut all = String::new();
        for _ in 0..1_000 {
            match next(queue, given, history) {
                Next::Text(text) => all += std::str::from_utf8(&text).unwrap(),
                Next::Again => {}
                Next::Nothing => return (all, false),
                Next::End => return (all, true),
            }
        }
        panic!("it goes on for ever");
    }

    fn ids(text: &str) -> Vec<u64> {
        text.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap()).collect()
    }

    #[test]
    fn one_that_is_behind_reads_by_itself_as_far_as_the_rounds_have_come() {
        let history = history(1_000, "a");
        let mut queue = Queue::new("a".to_owned(), Revision(100));
        let (text, ended) = sent(&mut queue, 900, &history);
        assert_eq!(ids(&text), (100..=900).collect::<Vec<_>>());
        assert!(!ended && queue.phase == Phase::Live);
        assert_eq!(queue.told, Revision(900));
    }

    #[test]
    fn one_step_of_reading_is_short_whether_it_finds_something_or_not() {
        let history = history(1_000, &"k".repeat(512));
        let mut finds = Queue::new(String::new(), Revision(0));
        let mut in_vain = Queue::new("x".to_owned(), Revision(0));
        assert!(matches!(next(&mut finds, 1_000, &history), Next::Text(_)));
        assert!(matches!(next(&mut in_vain, 1_000, &history), Next::Text(_)));
        assert!(matches!(next(&mut finds, 1_000, &history), Next::Text(text) if text.len() < 2 * STEP_BYTES));
        assert!(matches!(next(&mut in_vain, 1_000, &history), Next::Again));
        assert_eq!(in_vain.phase, Phase::Behind(Revision(STEP as u64)));
    }

    #[test]
    fn a_queue_holds_so_many_bytes_and_what_does_not_fit_is_read_later() {
        let history = history(1_000, "a");
        let mut queue = Queue::new("a".to_owned(), Revision(0));
        sent(&mut queue, 10, &history);
        // The rounds give three pieces for four changes each, of which the second does not fit.
        let piece = Bytes::from(vec![b'.'; MOST_BYTES - 100]);
        for before in [10, 14, 18] {
            queue.give(&piece, Revision(before), Revision(before + 4));
        }
        assert_eq!((queue.bytes, queue.phase), (piece.len(), Phase::Behind(Revision(14))));
        let (text, _) = sent(&mut queue, 22, &history);
        assert_eq!(ids(&text[piece.len()..]), (15..=22).collect::<Vec<_>>());
        assert_eq!((queue.bytes, queue.phase), (0, Phase::Live));
    }

    #[test]
    fn one_that_the_history_has_gone_past_is_cut_off_when_it_reads_or_is_looked_for() {
        for reads in [true, false] {
            let mut queue = Queue::new("a".to_owned(), Revision(0));
            sent(&mut queue, 10, &history(10, "a"));
            queue.give(&Bytes::from_static(b"for 11"), Revision(10), Revision(11));
            queue.give(&vec![b'.'; MOST_BYTES].into(), Revision(11), Revision(12));
            let mut history = history(20, "a");
            history.start_after(Revision(20));
            if !reads {
                queue.remind(Instant::now(), Revision(20), &history);
            }
            let (text, ended) = sent(&mut queue, 20, &history);
            let told = if reads { ("for 11", 11) } else { ("", 10) };
            let end = format!(
                "{}event: cut-off\ndata: {{\"revision\":{},\"reason\":\"too-slow\"}}\n\n",
                told.0, told.1
            );
            assert_eq!((text, ended), (end, true));
            // It stays ended, and only once.
            queue.cut_off(CutOffReason::StateReplaced);
            queue.give(&Bytes::from_static(b"more"), Revision(20), Revision(21));
            assert_eq!(sent(&mut queue, 21, &history), (String::new(), true));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_told_nothing_for_long_or_while_much_happens_is_told_where_to_go_on_from() {
        let history = history(1, "a");
        let mut queue = Queue::new("x".to_owned(), Revision(1));
        sent(&mut queue, 1, &history);
        let mut reminded = |seconds, given| {
            queue.remind(Instant::now() + Duration::from_secs(seconds), Revision(given), &history);
            sent(&mut queue, given, &history).0
        };
        assert_eq!(reminded(14, FAR), "");
        assert_eq!(reminded(15, 7), "id: 7\n\n");
        assert_eq!(reminded(14, FAR + 6), "");
        assert_eq!(reminded(0, FAR + 7), format!("id: {}\n\n", FAR + 7));
        assert_eq!(reminded(0, FAR + 8), "");
    }

    #[test]
    fn one_that_has_something_to_send_is_not_reminded() {
        let history = history(1, "a");
        let mut queue = Queue::new("a".to_owned(), Revision(1));
        sent(&mut queue, 1, &history);
        queue.give(&Bytes::from_static(b"piece"), Revision(1), Revision(2));
        queue.remind(Instant::now() + 2 * QUIET, Revision(2), &history);
        assert_eq!(sent(&mut queue, 2, &history).0, "piece");
    }
}
