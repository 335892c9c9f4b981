//! Metrics of what requests came to. Labels are outcomes, never values that a client chose.

use std::time::Duration;

use ringfence_metric::{Counter, Gauge, Histogram, metrics};
use ringfence_wire::{CutOffReason, ProblemKind};

use crate::done::Acquired;
use crate::failure::Failure;

const GRANTED: &str = "granted";
const STANDING: &str = "standing";
const WAITING: &str = "waiting";
const RENEWED: &str = "renewed";

/// The outcomes of acquires: three that are no failures, then the failures that are expected.
const ACQUIRE_OUTCOMES: &[&str] = &[
    GRANTED,
    STANDING,
    WAITING,
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
    RENEWED,
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

/// An acquire came to this.
pub(crate) fn acquired(result: Result<&Acquired, &Failure>) {
    let outcome = match result {
        Ok(Acquired::Granted { standing: false, .. }) => GRANTED,
        Ok(Acquired::Granted { standing: true, .. }) => STANDING,
        Ok(Acquired::Waiting(_)) => WAITING,
        Err(failure) => failure.kind().name(),
    };
    ACQUIRES.of(outcome).increment(1);
}

/// A request of several steps acquired as many leases.
pub(crate) fn transacted(grants: usize) {
    ACQUIRES.of(GRANTED).increment(grants as u64);
}

/// An acquire was granted after a wait in the queue.
pub(crate) fn waited(took: Duration) {
    WAITS.get().record(took);
}

/// A renewal came to this.
pub(crate) fn renewed(failure: Option<&Failure>) {
    RENEWALS.of(failure.map_or(RENEWED, |failure| failure.kind().name())).increment(1);
}

/// A release came to an end.
pub(crate) fn released() {
    RELEASES.get().increment(1);
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
