//! The watches of a node, and the task that drives their fan-out.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use ringfence_aside::Beat;
use ringfence_raft::{History, Progress, Stuck};
use ringfence_wire::Revision;
use tokio::runtime;
use tokio::sync::{Notify, mpsc};
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::contact::{ASK_EVERY, ASK_WITHIN, Contact, Moment};
use super::encoder::Encoder;
use super::fanout::{Fanout, Next};
use super::state::State;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure::WATCHERS;
use crate::rights::Allowed;
use crate::service::Service;
use crate::usage::Counted;

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
/// How long a thread waits for the state, of which each step is short, unless the thread that has it hangs.
const PATIENCE: Duration = Duration::from_millis(500);
/// After so long without a step, the thread of the task hangs.
const HANGS: Duration = Duration::from_secs(3);

/// The watches of a door of this node.
pub struct Watchers<E> {
    service: Arc<Service>,
    state: Mutex<State<E>>,
    /// Whether a thread waited for the state in vain, and none has had it since: then the others do not wait.
    stuck: AtomicBool,
    /// Whether the thread of the task was late at the last look.
    was_late: AtomicBool,
    /// Where streams that have ended say so, without the state.
    left: mpsc::UnboundedSender<u64>,
    /// Of the task.
    beat: Beat,
    /// Notified when a watch waits for its turn to read the history.
    blocked_reader: Notify,
}

/// What one watch sends. Dropping it ends the watch.
pub struct Stream<E: Encoder> {
    watchers: Arc<Watchers<E>>,
    number: u64,
    /// Counts the watch.
    _place: Counted,
}

impl<E: Encoder> futures_util::Stream for Stream<E> {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.watchers.next(self.number, cx) {
            Next::Text(text) => Poll::Ready(Some(text)),
            Next::End => Poll::Ready(None),
            Next::Nothing => Poll::Pending,
        }
    }
}

impl<E: Encoder> Drop for Stream<E> {
    fn drop(&mut self) {
        // The task may have ended with the node.
        let _ = self.watchers.left.send(self.number);
    }
}

impl<E: Encoder> Watchers<E> {
    /// No watches of what `service` offers.
    pub fn new(service: Arc<Service>) -> Arc<Self> {
        let (left, leaving) = mpsc::unbounded_channel();
        let (fanout, contact) = (Fanout::default(), Contact::new(Moment::now()));
        let state = State { runs: false, task: 0, fanout, contact, left: leaving };
        let (state, stuck) = (Mutex::new(state), AtomicBool::new(false));
        Arc::new(Self {
            service,
            state,
            stuck,
            was_late: AtomicBool::new(false),
            left,
            beat: Beat::default(),
            blocked_reader: Notify::new(),
        })
    }

    /// Sets the gauge of watches.
    pub fn measure(&self) {
        let count = self.state().map(|mut state| {
            state.forget_left();
            state.fanout.count()
        });
        // A thread that hangs may have them: what is not a number, no alert takes for one.
        WATCHERS.get().set(count.map_or(f64::NAN, |count| count as f64));
    }

    /// Replaces the task by one on `runtime` if its thread hangs: else no watch would be sent anything, on whichever thread it is.
    pub fn look_after(self: &Arc<Self>, runtime: &runtime::Handle) {
        // Two looks must agree: the whole process may have been frozen.
        let is_late = self.beat.age() >= HANGS;
        if self.was_late.swap(is_late, Ordering::Relaxed)
            && is_late
            && let Some(mut state) = self.state()
            && state.runs
        {
            tracing::warn!("the thread that drives the watches is blocked: another goes on");
            self.start(&mut state, runtime);
        }
    }

    fn start(self: &Arc<Self>, state: &mut State<E>, runtime: &runtime::Handle) {
        state.runs = true;
        state.task += 1;
        self.beat.beat();
        runtime.spawn(Arc::clone(self).run(state.task));
    }

    /// Opens a watch of the changes after `after`, or from now on, of keys that start with `prefix`, for `caller`. Calls `lasts` before
    /// it waits.
    ///
    /// # Errors
    /// There are as many as there may be, the history does not have these changes, or no leader answers.
    pub async fn open(
        self: &Arc<Self>,
        caller: &Caller,
        prefix: Allowed<&str>,
        after: Option<Revision>,
        lasts: impl FnOnce(),
    ) -> Result<Stream<E>, Failure> {
        let place = self.service.watch_place(caller)?;
        lasts();
        // Without it this node could not tell a revision beyond the cluster's from one that it has not applied yet.
        let asked = Moment::now();
        self.service.catch_up().await?;
        let mut state = self.state().ok_or(Stuck)?;
        state.forget_left();
        if state.fanout.count() >= MOST {
            let why = format!("this node has the maximum of {MOST} watches: use another node");
            return Err(Failure::TooManyWatches(why));
        }
        let number = self.service.handle.try_history(|history| {
            let after = after.unwrap_or(history.last());
            let under = prefix.get();
            match history.after(after, under).is_some() {
                true => Ok(state.fanout.enter(caller.clone(), under, after, history)),
                false => Err(gone(after, under, history)),
            }
        })??;
        if !state.runs {
            state.contact = Contact::new(asked);
            self.start(&mut state, &runtime::Handle::current());
        }
        Ok(Stream { watchers: Arc::clone(self), number, _place: place })
    }

    /// What watch `number` sends next. It ends if a thread that hangs has the state: its client resumes at another node.
    fn next(&self, number: u64, cx: &Context<'_>) -> Next {
        let Some(mut state) = self.state() else { return Next::End };
        let found = self.service.handle.try_history(|history| {
            let has_contact = state.has_contact();
            state.fanout.next(number, cx, has_contact, Some(history))
        });
        let next = found.unwrap_or_else(|Stuck| state.fanout.next(number, cx, false, None));
        if state.fanout.has_blocked_readers() {
            self.blocked_reader.notify_one();
        }
        next
    }

    /// Runs until there are no watches left, or another `task` has replaced this one.
    async fn run(self: Arc<Self>, task: u64) {
        let _runs = Runs(Arc::clone(&self));
        let mut progress = self.service.handle.progress();
        let mut draining = self.service.draining.clone();
        let mut bookmarks = interval(BOOKMARKS);
        bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut next_round, mut next_reads) = (Instant::now(), Instant::now());
        // What was changed before it looked for progress.
        let mut is_due = true;
        let mut contact = pin!(self.keep_contact());
        loop {
            self.wake_all().await;
            if is_due {
                let pause = GATHER_FOR_EACH * self.round().await;
                next_round = Instant::now() + pause.clamp(GATHER, GATHER_AT_MOST);
            }
            if !self.with(|state| state.goes_on(task)).await {
                return;
            }
            is_due = tokio::select! {
                biased;
                () = async { drop(draining.wait_for(|draining| *draining).await) } => break,
                _ = bookmarks.tick() => {
                    self.look_at_all().await;
                    false
                }
                never = &mut contact => match never {},
                () = self.readers_due(next_reads) => {
                    self.with(|state| state.fanout.allow_reads()).await;
                    next_reads = Instant::now() + GATHER;
                    false
                }
                () = self.changes_due(next_round, &mut progress) => true,
            };
        }
        self.with(State::end).await;
    }

    /// Has watches send bookmarks, and ends watches, where that is due.
    async fn look_at_all(&self) {
        self.with_history(|state, history| {
            state.forget_left();
            state.fanout.end_denied();
            state.note_position();
            let has_contact = state.has_contact();
            state.fanout.send_bookmarks(Instant::now(), has_contact, history);
        })
        .await;
    }

    /// Asks for what the cluster has committed, again and again.
    async fn keep_contact(&self) -> Infallible {
        loop {
            let (asked, next) = (Moment::now(), Instant::now() + ASK_EVERY);
            // The Raft thread may hang.
            match timeout(ASK_WITHIN, self.service.handle.linearize()).await {
                Ok(Ok(_)) => {
                    self.with_history(|state, history| state.contact.read(asked, history.last())).await;
                    while !self.with(State::note_position).await {
                        sleep(GATHER).await;
                    }
                }
                Ok(Err(_)) | Err(_) => {
                    let end = |state: &mut State<E>| {
                        if state.contact.is_lost(asked) {
                            state.fanout.end_without_contact();
                        }
                    };
                    self.with(end).await;
                }
            }
            sleep_until(next).await;
        }
    }

    /// Waits until a watch wants to read the history, and it is time for that.
    async fn readers_due(&self, next: Instant) {
        while !self.with(|state| state.fanout.has_blocked_readers()).await {
            self.blocked_reader.notified().await;
        }
        sleep_until(next).await;
    }

    /// Waits until a round is due and there are changes.
    async fn changes_due(&self, next: Instant, progress: &mut Progress) {
        while Instant::now() < next
            && !self.with_history(|state, history| state.fanout.are_late(history)).await
        {
            sleep(GATHER).await;
        }
        progress.any().await;
    }

    /// Fans out all changes that exist when it begins. Returns how many watches it woke.
    async fn round(&self) -> u32 {
        let (upto, mut woken) = (self.with_history(|_, history| history.last()).await, 0);
        loop {
            let goes_on = self.with_history(|state, history| state.fanout.step(history, upto)).await;
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
        while self.with(|state| state.fanout.has_any_to_wake()).await {
            woken += self.with(|state| state.fanout.wake_some()).await;
            yield_now().await;
        }
        woken
    }

    /// A step of the task, once it has the state.
    async fn with<T>(&self, mut step: impl FnMut(&mut State<E>) -> T) -> T {
        loop {
            self.beat.beat();
            if let Some(mut state) = self.state() {
                return step(&mut state);
            }
            sleep(GATHER).await;
        }
    }

    /// A step of the task, once it has the state and the history. Lock order: the watches, then the history.
    async fn with_history<T>(&self, mut step: impl FnMut(&mut State<E>, &History) -> T) -> T {
        loop {
            let found =
                self.with(|state| self.service.handle.try_history(|history| step(state, history))).await;
            match found {
                Ok(found) => return found,
                Err(Stuck) => sleep(GATHER).await,
            }
        }
    }

    /// The state, unless a thread that hangs has it.
    fn state(&self) -> Option<MutexGuard<'_, State<E>>> {
        let patience = if self.stuck.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
        let state = self.state.try_lock_for(patience);
        // Who did not wait knows nothing new.
        if state.is_some() || !patience.is_zero() {
            self.stuck.store(state.is_none(), Ordering::Relaxed);
        }
        state
    }
}

/// While the task runs. Should it panic, its watches end: their clients resume at another node, and the next watch here starts
/// another task.
struct Runs<E: Encoder>(Arc<Watchers<E>>);

impl<E: Encoder> Drop for Runs<E> {
    fn drop(&mut self) {
        if thread::panicking()
            && let Some(mut state) = self.0.state()
        {
            state.start_anew();
        }
    }
}

fn gone(after: Revision, prefix: &str, history: &History) -> Failure {
    Failure::HistoryGone { after, oldest: history.oldest(prefix), last: history.last() }
}
