//! The look at threads that hang, on a thread of its own: any other may be the one that hangs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ringfence_api::{Hang, Routes};
use ringfence_http::Threads;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::forever::forever;
use crate::loop_lag;

/// A thread that hangs for longer does nothing soon. If that is the Raft thread, another node may lead by then.
const BLOCKED: Duration = Duration::from_millis(1_500);
/// How often this looks, and how often if a thread may hang.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Who learns of what hangs.
#[derive(Clone)]
pub(crate) struct Look {
    pub(crate) threads: Arc<Threads>,
    /// Whether the Raft thread does.
    pub(crate) blocked: Arc<watch::Sender<bool>>,
    pub(crate) routes: Routes,
}

/// While it is looked. Dropping this ends that: threads that have stopped do not hang.
#[must_use]
pub(crate) struct Looking {
    _ends: watch::Sender<()>,
}

/// Whether one thread hangs.
#[derive(Clone, Copy, Default)]
struct Seen {
    hung: bool,
    is_blocked: bool,
}

impl Seen {
    /// Whether that has changed. When the whole process was suspended, this thread may run before the others: it counts if
    /// two looks agree.
    fn look(&mut self, hangs_for: Duration) -> bool {
        let hangs = hangs_for >= BLOCKED;
        let is_blocked = hangs && self.hung;
        self.hung = hangs;
        std::mem::replace(&mut self.is_blocked, is_blocked) != is_blocked
    }
}

impl Look {
    /// Looks until the result is dropped.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn start(self) -> io::Result<Looking> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (ends, ended) = watch::channel(());
        ringfence_aside::start("hangs", move || {
            runtime.block_on(forever("threads that hang", move || self.clone().go_on(ended.clone())));
        })?;
        Ok(Looking { _ends: ends })
    }

    async fn go_on(self, mut ended: watch::Receiver<()>) {
        let (mut raft, mut http) = (Seen::default(), Vec::new());
        loop {
            let longest = loop_lag::hangs_for().max(self.threads.hangs_for().1);
            tokio::select! {
                biased;
                _ = ended.changed() => return,
                () = sleep(if longest > BLOCKED / 2 { LOOK_AGAIN } else { LOOK }) => {}
            }
            if raft.look(loop_lag::hangs_for()) {
                match raft.is_blocked {
                    true => tracing::warn!(
                        "the Raft thread is blocked: who waits or asks here is sent to other nodes"
                    ),
                    false => tracing::info!("the Raft thread runs again"),
                }
                self.blocked.send_replace(raft.is_blocked);
            }
            let hang_for = self.threads.hang_for();
            http.resize(hang_for.len(), Seen::default());
            for (number, (seen, hangs_for)) in http.iter_mut().zip(hang_for).enumerate() {
                if seen.look(hangs_for) {
                    match seen.is_blocked {
                        true => tracing::warn!(
                            "the thread http-{number} is blocked: its connections get no answers, and new ones go to other threads"
                        ),
                        false => tracing::info!("the thread http-{number} runs again"),
                    }
                }
            }
            self.routes.look_after(&self.threads.last());
        }
    }
}

/// What tells of the thread that has hung for longest.
pub(crate) fn longest(threads: &Arc<Threads>) -> Arc<dyn Fn() -> Hang + Send + Sync> {
    let threads = Arc::clone(threads);
    Arc::new(move || {
        let (number, of_http) = threads.hangs_for();
        match loop_lag::hangs_for() {
            time if time >= of_http => Hang { thread: "the Raft thread".to_owned(), time },
            _ => Hang { thread: format!("the thread http-{number}"), time: of_http },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_hangs_once_two_looks_agree_and_until_it_runs() {
        let mut seen = Seen::default();
        let looks = [0, 1_500, 0, 1_500, 1_600, 9_999, 20, 20];
        let told = looks.map(|ms| (seen.look(Duration::from_millis(ms)), seen.is_blocked));
        let [no, begins, goes_on, ends] = [(false, false), (true, true), (false, true), (true, false)];
        assert_eq!(told, [no, no, no, no, begins, goes_on, ends, no]);
    }
}
