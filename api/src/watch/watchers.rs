//! The watches of a node, and the task that drives their fan-out.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use ringfence_raft::{Handle, History, Progress};
use ringfence_service::{Allowed, Caller, Counted};
use ringfence_wire::{ProblemKind, Revision};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::contact::{ASK_EVERY, ASK_WITHIN, Contact};
use super::fanout::{Fanout, Next};
use crate::problems::Failed;

/// The pause after a round, so that changes gather, and the addition for each watch that the round woke: waking one costs a
/// system call here and work at its client. So a few watches are served at once, and a thousand busy ones once a second,
/// at little cost to those who acquire.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_FOR_EACH: Duration = Duration::from_millis(1);
const GATHER_AT_MOST: Duration = Duration::from_secs(2);
/// The most watches of a node. Each costs memory and regular checks.
const MOST: usize = 4_096;
/// How often bookmarks are sent, and watches to end are looked for.
const BOOKMARKS: Duration = Duration::from_secs(1);

/// The watches of this node.
pub(crate) struct Watchers {
    handle: Handle,
    draining: watch::Receiver<bool>,
    state: Mutex<State>,
    /// Notified when a watch waits for its turn to read the history.
    blocked_reader: Notify,
}

struct State {
    /// Whether the task runs.
    runs: bool,
    fanout: Fanout,
    contact: Contact,
}

impl Default for State {
    fn default() -> Self {
        Self { runs: false, fanout: Fanout::default(), contact: Contact::new(Instant::now()) }
    }
}

impl State {
    /// Whether there are watches left. If not, the task ends.
    fn go_on(&mut self) -> bool {
        self.runs = self.fanout.count() > 0;
        self.runs
    }

    fn end(&mut self) {
        self.fanout.end();
        self.runs = false;
    }

    /// Ends all watches, and forgets a fan-out that may be half changed.
    fn start_anew(&mut self) {
        self.end();
        self.fanout = std::mem::take(&mut self.fanout).anew();
    }
}

/// The body of the answer to one watch. Dropping it ends the watch.
pub(crate) struct Stream {
    watchers: Arc<Watchers>,
    number: u64,
    /// Counts the watch.
    _place: Counted,
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
        Arc::new(Self { handle, draining, state: Mutex::default(), blocked_reader: Notify::new() })
    }

    /// The number of watches.
    pub(crate) fn count(&self) -> usize {
        self.state().fanout.count()
    }

    /// Opens a watch of the changes after `after`, or from now on, of keys that start with `prefix`, for `caller`.
    pub(crate) fn open(
        self: &Arc<Self>,
        prefix: Allowed<&str>,
        caller: &Caller,
        place: Counted,
        after: Option<Revision>,
    ) -> Result<Stream, Failed> {
        // Taken before the history is read, so that no later change is missed.
        let progress = self.handle.progress();
        let mut state = self.state();
        if state.fanout.count() >= MOST {
            let detail = "this node has the maximum of 4,096 watches: use another node";
            return Err(Failed::new(ProblemKind::Overloaded, detail));
        }
        let number = self.handle.history(|history| {
            let after = after.unwrap_or(history.last());
            let under = prefix.get();
            match history.after(after, under).is_some() {
                true => Ok(state.fanout.enter(caller.clone(), under, after, history)),
                false => Err(gone(after, under, history)),
            }
        })?;
        if !std::mem::replace(&mut state.runs, true) {
            // The caller has caught up.
            state.contact = Contact::new(Instant::now());
            tokio::spawn(Arc::clone(self).run(progress));
        }
        Ok(Stream { watchers: Arc::clone(self), number, _place: place })
    }

    fn next(&self, number: u64, cx: &Context<'_>) -> Next {
        let (next, is_blocked) =
            self.fanout(|fanout, history| (fanout.next(number, cx, history), fanout.has_blocked_readers()));
        if is_blocked {
            self.blocked_reader.notify_one();
        }
        next
    }

    fn leave(&self, number: u64) {
        self.state().fanout.leave(number);
    }

    /// Runs until there are no watches left.
    async fn run(self: Arc<Self>, mut progress: Progress) {
        let _runs = Runs(Arc::clone(&self));
        let mut draining = self.draining.clone();
        let mut bookmarks = interval(BOOKMARKS);
        bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next_round, mut next_reads) = (Instant::now(), Instant::now());
        let mut contact = pin!(self.keep_contact());
        loop {
            let is_due = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => break,
                _ = bookmarks.tick() => {
                    self.look_at_all();
                    false
                }
                never = &mut contact => match never {},
                () = self.readers_due(next_reads) => {
                    self.state().fanout.allow_reads();
                    next_reads = Instant::now() + GATHER;
                    false
                }
                () = self.changes_due(next_round, &mut progress) => true,
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

    /// Sends bookmarks, and ends watches, where that is due.
    fn look_at_all(&self) {
        let now = Instant::now();
        let mut state = self.state();
        state.fanout.end_denied();
        self.note_position(&mut state);
        let has_contact = state.contact.is_recent(now);
        self.handle.history(|history| state.fanout.send_bookmarks(now, has_contact, history));
    }

    /// Asks for what the cluster has committed, again and again.
    async fn keep_contact(&self) -> Infallible {
        loop {
            let asked = Instant::now();
            // The Raft thread may hang.
            match timeout(ASK_WITHIN, self.handle.linearize()).await {
                Ok(Ok(_)) => {
                    let found = self.handle.history(History::last);
                    self.state().contact.read(asked, found);
                    while !self.note_position(&mut self.state()) {
                        sleep(GATHER).await;
                    }
                }
                Ok(Err(_)) | Err(_) => {
                    let mut state = self.state();
                    if state.contact.is_lost(asked) {
                        state.fanout.end_without_contact();
                    }
                }
            }
            sleep_until(asked + ASK_EVERY).await;
        }
    }

    /// Whether all that was found is fanned out.
    fn note_position(&self, state: &mut State) -> bool {
        let position = state.fanout.position();
        state.contact.reached(position)
    }

    /// Waits until a watch wants to read the history, and it is time for that.
    async fn readers_due(&self, next: Instant) {
        while !self.state().fanout.has_blocked_readers() {
            self.blocked_reader.notified().await;
        }
        sleep_until(next).await;
    }

    /// Waits until a round is due and there are changes.
    async fn changes_due(&self, next: Instant, progress: &mut Progress) {
        while Instant::now() < next && !self.fanout(|fanout, history| fanout.are_late(history)) {
            sleep(GATHER).await;
        }
        progress.any().await;
    }

    /// Fans out all changes that exist when it begins. Returns how many watches it woke.
    async fn round(&self) -> u32 {
        let (upto, mut woken) = (self.handle.history(History::last), 0);
        loop {
            let goes_on = self.fanout(|fanout, history| fanout.step(history, upto));
            // Short steps: this thread serves connections, and the step holds the lock of the table.
            yield_now().await;
            woken += self.wake_all().await;
            if !goes_on {
                return woken;
            }
        }
    }

    /// Wakes the watches that have something to send, some at a time. Returns how many.
    async fn wake_all(&self) -> u32 {
        let mut woken = 0;
        while self.state().fanout.has_any_to_wake() {
            woken += self.state().fanout.wake_some();
            yield_now().await;
        }
        woken
    }

    /// Runs `work` on the fan-out and the history. Lock order: the watches, then the history.
    fn fanout<T>(&self, work: impl FnOnce(&mut Fanout, &History) -> T) -> T {
        let mut state = self.state();
        self.handle.history(|history| work(&mut state.fanout, history))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While the task runs. Should it panic, its watches end: their clients resume at another node, and the next watch here starts
/// another task.
struct Runs(Arc<Watchers>);

impl Drop for Runs {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.state().start_anew();
        }
    }
}

fn gone(after: Revision, prefix: &str, history: &History) -> Failed {
    let (before, last) = (history.oldest(prefix), history.last());
    let detail = if after > last {
        format!(
            "the cluster is at revision {last} and has not reached {after}: list the keys, then watch from there"
        )
    } else {
        format!(
            "this node has the changes after revision {before}, and {after} is before that or was skipped: list the keys, then \
             watch from there"
        )
    };
    Failed::new(ProblemKind::HistoryGone, detail).with_oldest(before)
}
