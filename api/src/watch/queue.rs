use std::collections::VecDeque;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use metrics::counter;
use ringfence_raft::History;
use ringfence_wire::{CutOff, CutOffReason, Revision};
use tokio::time::Instant;

use super::frame;

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
        let label = match reason {
            CutOffReason::TooSlow => "too-slow",
            CutOffReason::StateReplaced => "state-replaced",
        };
        counter!("ringfence_watches_cut_off_total", "reason" => label).increment(1);
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

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
