//! The threads that serve connections.
//!
//! Each has a runtime of its own, and a connection stays on the thread that it was given to. So what clients send is read,
//! parsed and answered beside the thread that runs Raft: a heartbeat waits for it no longer than the state is locked.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The threads that serve connections. Dropping it ends them soon, and what runs on them.
pub struct Threads {
    all: Vec<Thread>,
    /// Which of them is looked at first for the next connection.
    next: AtomicUsize,
    ends: Mutex<Vec<oneshot::Sender<()>>>,
    /// Disconnected when all threads have ended.
    running: Mutex<mpsc::Receiver<()>>,
}

struct Thread {
    runtime: Handle,
    /// How many connections it serves.
    serves: Arc<AtomicUsize>,
}

/// One of the connections that a thread serves.
struct Served(Arc<AtomicUsize>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// The system has no thread, or no descriptor, to give.
    pub fn start(count: usize) -> io::Result<Self> {
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        let (runs, running) = mpsc::channel();
        for number in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            all.push(Thread { runtime: runtime.handle().clone(), serves: Arc::default() });
            let (end, ended) = oneshot::channel::<()>();
            let runs = runs.clone();
            let run = move || {
                // An error: the sender was dropped.
                let _ = runtime.block_on(ended);
                drop((runtime, runs));
            };
            thread::Builder::new().name(format!("door-{number}")).spawn(run)?;
            ends.push(end);
        }
        Ok(Self { all, next: AtomicUsize::new(0), ends: Mutex::new(ends), running: Mutex::new(running) })
    }

    /// Ends the threads, and waits for that, at most `within`. Returns whether all have ended.
    pub fn end(&self, within: Duration) -> bool {
        let unpoisoned = "nothing that panics is done while it is locked";
        self.ends.lock().expect(unpoisoned).clear();
        let ended = self.running.lock().expect(unpoisoned).recv_timeout(within);
        ended == Err(mpsc::RecvTimeoutError::Disconnected)
    }

    /// The runtime that this is called in serves all.
    pub fn here() -> Self {
        let here = Thread { runtime: Handle::current(), serves: Arc::default() };
        let (_, running) = mpsc::channel();
        Self {
            all: vec![here],
            next: AtomicUsize::new(0),
            ends: Mutex::default(),
            running: Mutex::new(running),
        }
    }

    /// The runtime of each.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.all.iter().map(|thread| thread.runtime.clone()).collect()
    }

    /// Runs `task` on the first thread.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.all[0].runtime.spawn(task)
    }

    /// Runs the task of a connection on the thread that serves the fewest.
    pub(super) fn serve(&self, connection: impl Future<Output = ()> + Send + 'static) {
        // By turns, so that of those that serve as many none is preferred.
        let (before, from) = self.all.split_at(self.next.fetch_add(1, Ordering::Relaxed) % self.all.len());
        let by_turns = from.iter().chain(before);
        let thread = by_turns.min_by_key(|thread| thread.serves.load(Ordering::Relaxed));
        let thread = thread.expect("there is at least one thread");
        thread.serves.fetch_add(1, Ordering::Relaxed);
        let served = Served(Arc::clone(&thread.serves));
        thread.runtime.spawn(async move {
            connection.await;
            drop(served);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::sync::watch;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn each_thread_serves_as_many_connections_as_the_others() {
        let threads = Threads::start(3).unwrap();
        let (names, named) = mpsc::channel();
        let (end, ended) = watch::channel(false);
        let serve = |number: usize| {
            let (names, mut ended) = (names.clone(), ended.clone());
            threads.serve(async move {
                names.send((number, thread::current().name().unwrap().to_owned())).unwrap();
                let _ = ended.wait_for(|ended| *ended || number == 0).await;
            });
        };
        serve(0);
        named.recv_timeout(SOON).unwrap();
        // It has ended: the others come to all threads alike.
        while threads.all.iter().any(|thread| thread.serves.load(Ordering::Relaxed) > 0) {
            thread::yield_now();
        }
        (1..=6).for_each(serve);
        let mut serves = BTreeMap::<_, usize>::new();
        for _ in 0..6 {
            *serves.entry(named.recv_timeout(SOON).unwrap().1).or_default() += 1;
        }
        assert_eq!(
            serves.into_iter().collect::<Vec<_>>(),
            ["door-0", "door-1", "door-2"].map(|name| (name.to_owned(), 2))
        );
        drop(end);
    }

    #[test]
    fn a_thread_that_blocks_is_not_waited_for() {
        let threads = Threads::start(1).unwrap();
        let (go_on, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        threads.serve(async move {
            begun.send(()).unwrap();
            let _ = gate.recv();
        });
        begins.recv_timeout(SOON).unwrap();
        assert!(!threads.end(Duration::from_millis(50)));
        drop(go_on);
        assert!(threads.end(SOON));
    }

    #[test]
    fn what_runs_on_threads_ends_with_them() {
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
            threads.serve(async move {
                std::future::pending::<()>().await;
                drop(ends);
            });
        }
        assert!(threads.end(SOON));
        assert_eq!(ended.try_iter().count(), 2);
    }
}
