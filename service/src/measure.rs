//! Metrics of what requests came to. Labels are outcomes, never values that a client chose.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use ringfence_wire::ProblemKind;

use crate::done::Acquired;
use crate::failure::Failure;

/// The failures of acquires and renewals that are registered at the start.
const ACQUIRE_FAILURES: &[ProblemKind] = &[
    ProblemKind::Held,
    ProblemKind::WaitTimeout,
    ProblemKind::LeaseMismatch,
    ProblemKind::LeaseGone,
    ProblemKind::Forbidden,
    ProblemKind::Overloaded,
    ProblemKind::Unavailable,
    ProblemKind::Indeterminate,
];
const RENEW_FAILURES: &[ProblemKind] = &[
    ProblemKind::NotGranted,
    ProblemKind::LeaseGone,
    ProblemKind::UnknownLease,
    ProblemKind::Forbidden,
    ProblemKind::Unavailable,
    ProblemKind::Indeterminate,
];

static ACQUIRED: Outcomes<3> = Outcomes::new("ringfence_acquire_total", ["granted", "standing", "waiting"]);
static RENEWED: Outcomes<1> = Outcomes::new("ringfence_renew_total", ["renewed"]);
static RELEASED: LazyLock<Counter> = LazyLock::new(|| counter!("ringfence_release_total"));
static WAITED: LazyLock<Histogram> = LazyLock::new(|| histogram!("ringfence_acquire_wait_seconds"));

/// A counter for each outcome, made when it is first counted: looking one up in the recorder costs more than counting.
struct Outcomes<const N: usize> {
    total: &'static str,
    names: [&'static str; N],
    done: [OnceLock<Counter>; N],
    failed: [OnceLock<Counter>; ProblemKind::ALL.len()],
}

impl<const N: usize> Outcomes<N> {
    const fn new(total: &'static str, names: [&'static str; N]) -> Self {
        Self {
            total,
            names,
            done: [const { OnceLock::new() }; N],
            failed: [const { OnceLock::new() }; ProblemKind::ALL.len()],
        }
    }

    fn done(&self, place: usize) -> &Counter {
        self.done[place].get_or_init(|| counter!(self.total, "outcome" => self.names[place]))
    }

    fn failed(&self, kind: ProblemKind) -> &Counter {
        self.failed[kind as usize].get_or_init(|| counter!(self.total, "outcome" => kind.name()))
    }

    fn register(&self, failures: &[ProblemKind]) {
        for place in 0..N {
            self.done(place);
        }
        for kind in failures {
            self.failed(*kind);
        }
    }
}

/// Registers all counters with 0: a rate misses the first count of a metric that did not exist before.
pub(crate) fn register() {
    ACQUIRED.register(ACQUIRE_FAILURES);
    RENEWED.register(RENEW_FAILURES);
    LazyLock::force(&RELEASED);
    LazyLock::force(&WAITED);
}

/// An acquire came to this.
pub(crate) fn acquired(result: Result<&Acquired, &Failure>) {
    let counter = match result {
        Ok(Acquired::Granted { standing: false, .. }) => ACQUIRED.done(0),
        Ok(Acquired::Granted { standing: true, .. }) => ACQUIRED.done(1),
        Ok(Acquired::Waiting(_)) => ACQUIRED.done(2),
        Err(failure) => ACQUIRED.failed(failure.kind()),
    };
    counter.increment(1);
}

/// An acquire was granted after a wait in the queue.
pub(crate) fn waited(took: Duration) {
    WAITED.record(took);
}

/// A renewal came to this.
pub(crate) fn renewed(failure: Option<&Failure>) {
    failure.map_or_else(|| RENEWED.done(0), |failure| RENEWED.failed(failure.kind())).increment(1);
}

/// A release came to an end.
pub(crate) fn released() {
    RELEASED.increment(1);
}
