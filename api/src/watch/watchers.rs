//! The watches of a node, and the task that makes their rounds.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::Frame;
use ringfence_raft::{Handle, History, Progress};
use ringfence_wire::{ProblemKind, Revision};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::rounds::{Next, Rounds};
use crate::problems::Failed;

/// How long after a round the next one comes, so that changes gather; and for each watch that it woke, which costs a system
/// call and more, here and at its client. So few watches are told at once, and a thousand that have something to be told all
/// the time are told once a second, and slow down who acquires by little.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_FOR_EACH: Duration = Duration::from_millis(1);
const GATHER_AT_MOST: Duration = Duration::from_secs(2);
/// The most watches of a node. Each costs memory, and a look from time to time.
const MOST: usize = 4_096;
/// How often quiet and slow watches are looked for.
const REMIND: Duration = Duration::from_secs(1);

/// The watches of this node.
pub(crate) struct Watchers {
    handle: Handle,
    draining: watch::Receiver<bool>,
    state: Mutex<State>,
    /// Told when somebody waits to be allowed to read.
    hunger: Notify,
}

#[derive(Default)]
struct State {
    /// Whether the task is there.
    runs: bool,
    rounds: Rounds,
}

impl State {
    /// Whether there is still somebody who watches. If not, the task ends.
    fn go_on(&mut self) -> bool {
        self.runs = self.rounds.count() > 0;
        self.runs
    }

    fn end(&mut self) {
        self.rounds.end();
        self.runs = false;
    }
}

/// The body of the answer to one watch. Dropping it ends the watch.
pub(crate) struct Stream {
    watchers: Arc<Watchers>,
    number: u64,
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.watchers.next(self.number, cx) {
            Next::Text(text) => Poll::Ready(Some(Ok(Frame::data(text)))),
            Next::End => Poll::Ready(None),
            Next::Nothing => Poll::Pending,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.watchers.leave(self.number);
    }
}

impl Watchers {
    pub(crate) fn new(handle: Handle, draining: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self { handle, draining, state: Mutex::default(), hunger: Notify::new() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state().rounds.count()
    }

    /// A watch of what comes after number `after`, or from now on, on keys that start with `prefix`.
    pub(crate) fn open(self: &Arc<Self>, prefix: &str, after: Option<Revision>) -> Result<Stream, Failed> {
        // Before the history is looked at: nothing that comes after that is missed.
        let progress = self.handle.progress();
        let mut state = self.state();
        if state.rounds.count() >= MOST {
            let detail = "this node has as many watches as it takes, 4,096: watch at another node";
            return Err(Failed::new(ProblemKind::Overloaded, detail));
        }
        let number = self.handle.history(|history| {
            let after = after.unwrap_or(history.last());
            match history.after(after).is_some() {
                true => Ok(state.rounds.enter(prefix, after, history)),
                false => Err(gone(after, history)),
            }
        })?;
        if !std::mem::replace(&mut state.runs, true) {
            tokio::spawn(Arc::clone(self).run(progress));
        }
        Ok(Stream { watchers: Arc::clone(self), number })
    }

    fn next(&self, number: u64, cx: &Context<'_>) -> Next {
        let mut state = self.state();
        let next = self.handle.history(|history| state.rounds.next(number, cx, history));
        if state.rounds.are_hungry() {
            self.hunger.notify_one();
        }
        next
    }

    fn leave(&self, number: u64) {
        self.state().rounds.leave(number);
    }

    /// Makes the rounds, until nobody watches any more.
    async fn run(self: Arc<Self>, mut progress: Progress) {
        let mut draining = self.draining.clone();
        let mut reminders = interval(REMIND);
        reminders.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next_round, mut next_meal) = (Instant::now(), Instant::now());
        loop {
            let is_due = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => break,
                _ = reminders.tick() => {
                    self.remind();
                    false
                }
                () = self.hungry_at(next_meal) => {
                    self.state().rounds.feed();
                    next_meal = Instant::now() + GATHER;
                    false
                }
                () = self.changed_at(next_round, &mut progress) => true,
            };
            self.wake_all().await;
            if is_due {
                let pause = GATHER_FOR_EACH * self.round().await;
                next_round = Instant::now() + pause.clamp(GATHER, GATHER_AT_MOST);
            }
            if !self.state().go_on() {
                return;
            }
        }
        self.state().end();
    }

    /// Waits until somebody wants to read, and may.
    async fn hungry_at(&self, next: Instant) {
        while !self.state().rounds.are_hungry() {
            self.hunger.notified().await;
        }
        sleep_until(next).await;
    }

    /// Waits until a round is due, and there is something for it.
    async fn changed_at(&self, next: Instant, progress: &mut Progress) {
        while Instant::now() < next && !self.are_late() {
            sleep(GATHER).await;
        }
        progress.any().await;
    }

    fn are_late(&self) -> bool {
        let state = self.state();
        self.handle.history(|history| state.rounds.are_late(history))
    }

    fn remind(&self) {
        let mut state = self.state();
        self.handle.history(|history| state.rounds.remind(Instant::now(), history));
    }

    /// Gives out all that is there when it begins. Gives how many it woke.
    async fn round(&self) -> u32 {
        let (upto, mut woken) = (self.handle.history(History::last), 0);
        loop {
            let goes_on = self.step(upto);
            // All are short steps: this thread serves connections, too, and the table is locked meanwhile.
            yield_now().await;
            woken += self.wake_all().await;
            if !goes_on {
                return woken;
            }
        }
    }

    /// Wakes those for whom there is something new, some at a time. Gives how many.
    async fn wake_all(&self) -> u32 {
        let mut woken = 0;
        while self.state().rounds.has_sleepers() {
            woken += self.state().rounds.wake_some();
            yield_now().await;
        }
        woken
    }

    fn step(&self, upto: Revision) -> bool {
        let mut state = self.state();
        self.handle.history(|history| state.rounds.step(history, upto))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the watches are locked")
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
