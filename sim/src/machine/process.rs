//! The process of a machine: a runtime whose clock is advanced from outside.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

#[cfg(tokio_unstable)]
use tokio::runtime::RngSeed;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, Sleep, advance, sleep_until};

/// How long a process may lag behind while it is given nothing, in milliseconds.
const IDLE: u64 = 25;

/// A runtime with a paused clock, which is advanced from outside.
pub struct Process {
    pub(super) runtime: Runtime,
    base: Instant,
    /// How far its clock is, in milliseconds since the process began.
    local: u64,
    /// When the process began, in the world's time.
    began: u64,
    speed: u64,
    /// When it runs next.
    wakes_at: Cell<u64>,
    idle: Arc<Idle>,
    /// Ends when its clock is where it is to be.
    clock_comes: Pin<Box<Sleep>>,
}

/// Knows when the runtime has nothing left to do at its time.
#[derive(Default)]
struct Idle {
    is_awaited: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Idle {
    fn wake(&self) {
        // A runtime parks at every timer: a lock each time is much.
        if self.is_awaited.load(Relaxed) {
            self.is_awaited.store(false, Relaxed);
            let waker = self.waker.lock().expect("nothing panics while the waker is locked").take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until all other tasks wait.
    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            if has_waited && !self.is_awaited.load(Relaxed) {
                return Poll::Ready(());
            }
            has_waited = true;
            let mut waker = self.waker.lock().expect("nothing panics while the waker is locked");
            *waker = Some(cx.waker().clone());
            self.is_awaited.store(true, Relaxed);
            Poll::Pending
        })
        .await;
    }
}

impl Process {
    /// A process that begins `now`, and draws from `seed`. Its clock runs at `speed` thousandths of real time.
    pub fn new(now: u64, seed: u64, speed: u64) -> Self {
        let idle = Arc::new(Idle::default());
        let parks = Arc::clone(&idle);
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true).on_thread_park(move || parks.wake());
        // Tokio notifies the receivers of a watch in an order that it draws.
        #[cfg(tokio_unstable)]
        builder.rng_seed(RngSeed::from_bytes(&seed.to_le_bytes()));
        #[cfg(not(tokio_unstable))]
        let _ = seed;
        let runtime = builder.build();
        let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
        let (base, clock_comes) =
            runtime.block_on(async { (Instant::now(), Box::pin(sleep_until(Instant::now()))) });
        let wakes_at = Cell::new(now + 1);
        Self { runtime, base, local: 0, began: now, speed, wakes_at, idle, clock_comes }
    }

    /// Runs everything up to `now`, each timer at its own time.
    pub fn run_until(&mut self, now: u64) {
        let local = self.clock(now);
        let advances = local > self.local;
        self.local = local;
        self.wakes_at.set(now + IDLE);
        let until = self.base + Duration::from_millis(self.local);
        let (idle, clock_comes) = (&self.idle, &mut self.clock_comes);
        self.runtime.block_on(async {
            // A timer that is set to a time that has come wakes at once whoever waited for it last.
            if advances {
                clock_comes.as_mut().reset(until);
                clock_comes.await;
            }
            idle.wait().await;
        });
    }

    fn clock(&self, now: u64) -> u64 {
        (now - self.began) * self.speed / 1_000
    }

    /// Lets it run soon, because it was given something `now`.
    pub fn wake(&self, now: u64) {
        self.wakes_at.set(self.wakes_at.get().min(now + 1));
    }

    /// Advances the clock to `now` at once, as for a process that was stopped: all timers are late.
    pub fn jump_to(&mut self, now: u64) {
        let by = self.clock(now) - self.local;
        self.local += by;
        self.runtime.block_on(async { advance(Duration::from_millis(by)).await });
    }

    /// Runs a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// When it runs next.
    pub fn wakes_at(&self) -> u64 {
        self.wakes_at.get()
    }

    /// The clock when the process began.
    pub fn base(&self) -> Instant {
        self.base
    }
}
