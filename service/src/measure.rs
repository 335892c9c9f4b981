//! Metrics of what requests came to. Labels are outcomes, never values that a client chose.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use ringfence_metric::{Counter, Gauge, Histogram, metrics};
use ringfence_wire::{CutOffReason, ProblemKind};

use crate::done::Acquired;
use crate::failure::Failure;

/// The outcomes of acquires: three that are no failures, then the failures that are expected.
const ACQUIRE_OUTCOMES: &[&str] = &[
    "granted",
    "standing",
    "waiting",
    ProblemKind::Held.name(),
    ProblemKind::WaitTimeout.name(),
    ProblemKind::LeaseMismatch.name(),
    ProblemKind::LeaseGone.name(),
    ProblemKind::Forbidden.name(),
    ProblemKind::Overloaded.name(),
    ProblemKind::Unavailable.name(),
    ProblemKind::Indeterminate.name(),
];
/// The outcomes of renewals: one that is no failure, then the failures that are expected.
const RENEW_OUTCOMES: &[&str] = &[
    "renewed",
    ProblemKind::NotGranted.name(),
    ProblemKind::LeaseGone.name(),
    ProblemKind::UnknownLease.name(),
    ProblemKind::Forbidden.name(),
    ProblemKind::Unavailable.name(),
    ProblemKind::Indeterminate.name(),
];

metrics! {
    pub METRICS;
    ACQUIRES: Counter = Counter::new(
        "ringfence_acquire_total",
        "Acquires that this node answered, by result: granted, standing (a repeat got the same grant), waiting (its place is kept), or the problem.",
    ).by("outcome", ACQUIRE_OUTCOMES);
    RENEWALS: Counter = Counter::new(
        "ringfence_renew_total",
        "Renewals that this node answered, by result: renewed, or the problem.",
    ).by("outcome", RENEW_OUTCOMES);
    RELEASES: Counter = Counter::new(
        "ringfence_release_total",
        "Releases that this node answered, repeats included.",
    );
    WATCHERS: Gauge = Gauge::new("ringfence_watchers", "Open watches at this node.");
    WATCHES_CUT_OFF: Counter = Counter::new(
        "ringfence_watches_cut_off_total",
        "Watches that this node ended because it did not have the changes that they needed, by reason.",
    ).by("reason", &[
        cut_off_reason(CutOffReason::TooSlow),
        cut_off_reason(CutOffReason::StateReplaced),
        cut_off_reason(CutOffReason::NoContact),
    ]);
    WAITS: Histogram = Histogram::new(
        "ringfence_acquire_wait_seconds",
        "Time in the queue of acquires that were granted from it, as seen by the node that answered.",
    );
}

static ACQUIRED: Outcomes<3> = Outcomes::new(&ACQUIRES, ACQUIRE_OUTCOMES);
static RENEWED: Outcomes<1> = Outcomes::new(&RENEWALS, RENEW_OUTCOMES);
static RELEASED: LazyLock<metrics::Counter> = LazyLock::new(|| RELEASES.get());
static WAITED: LazyLock<metrics::Histogram> = LazyLock::new(|| WAITS.get());

/// A counter for each outcome, made when it is first counted: looking one up in the recorder costs more than counting.
struct Outcomes<const N: usize> {
    total: &'static Counter,
    /// The first `N` are no failures.
    names: &'static [&'static str],
    done: [OnceLock<metrics::Counter>; N],
    failed: [OnceLock<metrics::Counter>; ProblemKind::ALL.len()],
}

impl<const N: usize> Outcomes<N> {
    const fn new(total: &'static Counter, names: &'static [&'static str]) -> Self {
        Self {
            total,
            names,
            done: [const { OnceLock::new() }; N],
            failed: [const { OnceLock::new() }; ProblemKind::ALL.len()],
        }
    }

    fn done(&self, place: usize) -> &metrics::Counter {
        self.done[place].get_or_init(|| self.total.of(self.names[place]))
    }

    fn failed(&self, kind: ProblemKind) -> &metrics::Counter {
        self.failed[kind as usize].get_or_init(|| self.total.of(kind.name()))
    }
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

/// A request of several steps acquired as many leases.
pub(crate) fn transacted(grants: usize) {
    ACQUIRED.done(0).increment(grants as u64);
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

/// Counts a watch that this node cut off.
pub(crate) fn watch_cut_off(reason: CutOffReason) {
    WATCHES_CUT_OFF.of(cut_off_reason(reason)).increment(1);
}

const fn cut_off_reason(reason: CutOffReason) -> &'static str {
    match reason {
        CutOffReason::TooSlow => "too-slow",
        CutOffReason::StateReplaced => "state-replaced",
        CutOffReason::NoContact => "no-contact",
    }
}
