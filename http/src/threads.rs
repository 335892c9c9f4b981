//! The threads that serve connections.
//!
//! Each thread has its own single-threaded runtime, and a connection stays on its thread. So reading, parsing and encoding
//! run in parallel with the Raft thread, and delay a heartbeat only while they lock the state.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ringfence_aside::Beat;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::turns::Turns;

/// Polls of tasks until a thread looks for what is ready. A request takes two to four, and those between two looks share an entry
/// of the log. How long they may take, `turns` bounds.
const POLLS_UNTIL_LOOK: u32 = 256;
/// A thread that has not run for so long gets no new connections.
const HANGS: Duration = Duration::from_secs(1);

/// The threads that serve connections. Dropping it stops them, and the tasks that run on them, soon.
pub struct Threads {
    all: Vec<Thread>,
    /// Where the search for the next connection's thread starts.
    next: AtomicUsize,
    /// Dropping a sender stops its thread.
    stops: Mutex<Vec<oneshot::Sender<()>>>,
    /// Disconnected when all threads have stopped.
    running: Mutex<mpsc::Receiver<()>>,
}

struct Thread {
    runtime: Handle,
    /// Each connection that the thread serves holds a clone.
    load: Arc<()>,
    turns: Arc<Turns>,
    /// `None`: of the runtime of others, which nobody looks at.
    beat: Option<Arc<Beat>>,
}

impl Thread {
    fn hangs_for(&self) -> Duration {
        self.beat.as_ref().map_or(Duration::ZERO, |beat| beat.age())
    }
}

impl Threads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// The system is out of threads or descriptors.
    pub fn start(count: usize) -> io::Result<Self> {
        let (mut all, mut stops) = (Vec::new(), Vec::new());
        let (runs, running) = mpsc::channel();
        for number in 0..count.max(1) {
            let turns = Arc::<Turns>::default();
            let unparked = Arc::clone(&turns);
            let mut runtime = Builder::new_current_thread();
            let runtime = runtime
                .enable_all()
                .event_interval(POLLS_UNTIL_LOOK)
                .on_thread_unpark(move || unparked.looked())
                .build()?;
            let beat = Arc::new(Beat::default());
            let beats = Arc::clone(&beat);
            runtime.spawn(async move { beats.go_on().await });
            let handle = runtime.handle().clone();
            all.push(Thread { runtime: handle, load: Arc::default(), turns, beat: Some(beat) });
            let (stop, stopped) = oneshot::channel::<()>();
            let runs = runs.clone();
            let run = move || {
                // An error means that the sender was dropped.
                let _ = runtime.block_on(stopped);
                drop((runtime, runs));
            };
            ringfence_aside::start(format!("http-{number}"), run)?;
            stops.push(stop);
        }
        Ok(Self { all, next: AtomicUsize::new(0), stops: Mutex::new(stops), running: Mutex::new(running) })
    }

    /// Stops the threads, and waits at most `within` for them. Returns whether all have stopped.
    pub fn end(&self, within: Duration) -> bool {
        let unpoisoned = "nothing panics while this is locked";
        self.stops.lock().expect(unpoisoned).clear();
        let stopped = self.running.lock().expect(unpoisoned).recv_timeout(within);
        stopped == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// Serves all connections on the current runtime.
    pub fn here() -> Self {
        let (load, turns) = (Arc::default(), Arc::default());
        let all = vec![Thread { runtime: Handle::current(), load, turns, beat: None }];
        let (_, running) = mpsc::channel();
        Self { all, next: AtomicUsize::new(0), stops: Mutex::default(), running: Mutex::new(running) }
    }

    /// The runtime of each thread.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.all.iter().map(|thread| thread.runtime.clone()).collect()
    }

    /// For how long each thread has hung.
    pub fn hang_for(&self) -> Vec<Duration> {
        self.all.iter().map(Thread::hangs_for).collect()
    }

    /// The number of the thread that has hung for longest, and for how long.
    pub fn hangs_for(&self) -> (usize, Duration) {
        let times = self.all.iter().map(Thread::hangs_for).enumerate();
        times.max_by_key(|(_, time)| *time).expect("there is at least one thread")
    }

    /// The runtime of the last thread that runs.
    pub fn last(&self) -> Handle {
        let running = self.all.iter().rev().find(|thread| thread.hangs_for() < HANGS);
        running.unwrap_or(&self.all[self.all.len() - 1]).runtime.clone()
    }

    /// Runs `task` on the first thread.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.all[0].runtime.spawn(task)
    }

    /// Serves a connection on the thread that serves the fewest of those that run, round-robin among equals. `serve` gets the thread's turns.
    pub(super) fn serve<F>(&self, serve: impl FnOnce(Arc<Turns>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (before, from) = self.all.split_at(self.next.fetch_add(1, Ordering::Relaxed) % self.all.len());
        let thread = from.iter().chain(before).min_by_key(|thread| {
            // One that hangs loses none, and would get all that come.
            (thread.hangs_for() >= HANGS, Arc::strong_count(&thread.load))
        });
        let thread = thread.expect("there is at least one thread");
        let load = Arc::clone(&thread.load);
        let connection = serve(Arc::clone(&thread.turns));
        thread.runtime.spawn(async move {
            connection.await;
            drop(load);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread;

    use tokio::sync::watch;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn connections_are_spread_evenly_over_the_threads() {
        let threads = Threads::start(3).unwrap();
        let (names, named) = mpsc::channel();
        let (end, ended) = watch::channel(false);
        let serve = |number: usize| {
            let (names, mut ended) = (names.clone(), ended.clone());
            threads.serve(|_| async move {
                names.send((number, thread::current().name().unwrap().to_owned())).unwrap();
                let _ = ended.wait_for(|ended| *ended || number == 0).await;
            });
        };
        serve(0);
        named.recv_timeout(SOON).unwrap();
        // It has ended, so all threads are idle again.
        while threads.all.iter().any(|thread| Arc::strong_count(&thread.load) > 1) {
            thread::yield_now();
        }
        (1..=6).for_each(serve);
        let mut serves = BTreeMap::<_, usize>::new();
        for _ in 0..6 {
            *serves.entry(named.recv_timeout(SOON).unwrap().1).or_default() += 1;
        }
        assert_eq!(
            serves.into_iter().collect::<Vec<_>>(),
            ["http-0", "http-1", "http-2"].map(|name| (name.to_owned(), 2))
        );
        drop(end);
    }

    #[test]
    fn a_thread_that_blocks_is_not_waited_for() {
        let threads = Threads::start(1).unwrap();
        let (go_on, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        threads.serve(|_| async move {
            begun.send(()).unwrap();
            let _ = gate.recv();
        });
        begins.recv_timeout(SOON).unwrap();
        assert!(!threads.end(Duration::from_millis(50)));
        drop(go_on);
        assert!(threads.end(SOON));
    }

    #[test]
    fn a_thread_that_hangs_is_known_by_the_others_and_gets_nothing_new() {
        let threads = Threads::start(2).unwrap();
        let (go_on, gate) = mpsc::channel::<()>();
        let (names, named) = mpsc::channel();
        let name = || thread::current().name().unwrap().to_owned();
        let begun = names.clone();
        threads.serve(|_| async move {
            begun.send(name()).unwrap();
            let _ = gate.recv();
        });
        let hung = named.recv_timeout(SOON).unwrap();
        let number = usize::from(hung == "http-1");
        while threads.hangs_for().0 != number || threads.hangs_for().1 < HANGS {
            thread::yield_now();
        }
        for _ in 0..3 {
            let names = names.clone();
            threads.serve(|_| async move { names.send(name()).unwrap() });
            assert_ne!(named.recv_timeout(SOON).unwrap(), hung);
        }
        let names = names.clone();
        threads.last().spawn(async move { names.send(name()).unwrap() });
        assert_ne!(named.recv_timeout(SOON).unwrap(), hung);
        drop(go_on);
        while threads.hangs_for().1 >= HANGS {
            thread::yield_now();
        }
    }

    #[test]
    fn tasks_end_with_their_threads() {
        struct Ends(mpsc::Sender<()>);
        impl Drop for Ends {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let threads = Threads::start(2).unwrap();
        let (ends, ended) = mpsc::channel();
        for _ in 0..2 {
            let ends = Ends(ends.clone());
            threads.serve(|_| async move {
                std::future::pending::<()>().await;
                drop(ends);
            });
        }
        assert!(threads.end(SOON));
        assert_eq!(ended.try_iter().count(), 2);
    }
}
