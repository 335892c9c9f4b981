//! Runs with one seed after the other.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use crate::coverage::Coverage;
use crate::plan::Plan;
use crate::run::{Outcome, run};
use crate::story::Line;

/// Every run whose seed is a multiple of this is played twice: both must be the same.
const REPEATED: u64 = 32;

/// At most how many times as long a swarm lasts while something was not exercised: a busy machine plays fewer runs.
const LONGER: u32 = 4;

/// Runs with the seeds from one on.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// The first seed.
    pub first: u64,
    /// How long it lasts, unless a run fails; up to [`LONGER`] times as long while something was not exercised.
    pub time: Duration,
    /// How many runs are played at once.
    pub jobs: usize,
}

/// What came of a swarm.
#[derive(Debug, Default)]
pub struct Total {
    /// How many runs were played.
    pub runs: u64,
    /// How many of them contradict the laws.
    pub failed: u64,
    /// How long the clusters ran in their own time, in milliseconds.
    pub simulated: u64,
    /// What was exercised.
    pub coverage: Coverage,
}

impl Swarm {
    /// Plays the runs. `tell` hears of each that failed.
    pub fn play(&self, tell: impl Fn(u64, &Outcome) + Sync) -> Total {
        let (next, is_over, total) =
            (AtomicU64::new(self.first), AtomicBool::new(false), Mutex::<Total>::default());
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) && !self.is_enough(began.elapsed(), &total) {
                        let seed = next.fetch_add(1, Relaxed);
                        let outcome = play_one(seed);
                        if !outcome.findings.is_empty() {
                            tell(seed, &outcome);
                            is_over.store(true, Relaxed);
                        }
                        add(&mut total.lock().expect("nothing panics while the total is locked"), &outcome);
                    }
                });
            }
        });
        total.into_inner().expect("nothing panics while the total is locked")
    }

    fn is_enough(&self, played: Duration, total: &Mutex<Total>) -> bool {
        let total = total.lock().expect("nothing panics while the total is locked");
        played >= self.time.saturating_mul(LONGER)
            || played >= self.time && total.coverage.missing_of_many().is_empty()
    }
}

fn add(total: &mut Total, outcome: &Outcome) {
    total.runs += 1;
    total.failed += u64::from(!outcome.findings.is_empty());
    total.simulated += outcome.simulated;
    total.coverage.merge(&outcome.coverage);
}

fn play_one(seed: u64) -> Outcome {
    let plan = Plan::draw(seed);
    let mut outcome = run(&plan, false);
    if seed.is_multiple_of(REPEATED) {
        let again = beside_others(|| run(&plan, false));
        if (again.digest, &again.story) != (outcome.digest, &outcome.story) {
            let other = beside_others(|| run(&plan, true));
            let difference = first_difference(&run(&plan, true).story, &other.story);
            outcome.findings.push(format!(
                "the simulator itself: the same seed is another run the second time. {difference}"
            ));
        }
    }
    outcome
}

/// Does `work` while another thread takes ids of tasks. They are numbered in the whole process, and a runtime that is dropped ends
/// its tasks in an order that depends on their ids: a run must not depend on that.
fn beside_others<R>(work: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        let (_ends, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let runtime = Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
            let wait = || ended.recv_timeout(Duration::from_micros(fastrand::u64(1..100)));
            while wait() == Err(RecvTimeoutError::Timeout) {
                runtime.block_on(async { drop(tokio::spawn(async {})) });
            }
        });
        work()
    })
}

fn first_difference(one: &[Line], other: &[Line]) -> String {
    match one.iter().zip(other).find(|(one, other)| one != other) {
        Some((one, other)) => format!("Once: {one}; again: {other}"),
        None => format!("Its story has {} lines, the other {}", one.len(), other.len()),
    }
}
