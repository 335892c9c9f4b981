//! What the door measures. Labels are routes, statuses and outcomes: never what a client chose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{LazyLock, RwLock};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::{Counter, Histogram, counter, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use ringfence_wire::CutOffReason;

use crate::problems::Failed;

/// The upper ends of the buckets of everything that is measured in seconds: from a batch in memory to the longest wait.
const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0,
];

/// The outcomes of acquires and renewals that there are, for dashboards to find them before the first of each.
const ACQUIRE_OUTCOMES: &[&str] = &[
    "granted",
    "standing",
    "waiting",
    "held",
    "wait-timeout",
    "lease-mismatch",
    "lease-gone",
    "overloaded",
    "unavailable",
    "indeterminate",
];
const RENEW_OUTCOMES: &[&str] =
    &["renewed", "not-granted", "lease-gone", "unknown-lease", "unavailable", "indeterminate"];

/// A recorder that knows the buckets of what this program measures, to be installed once by the process, before anything is
/// measured.
pub fn metrics_builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .expect("there is at least one bucket")
}

/// Shows what is counted from the start, as 0: a rate sees no first count of what was not there before.
pub(crate) fn begin() {
    ACQUIRE_OUTCOMES.iter().for_each(|outcome| drop(acquire_total(outcome)));
    RENEW_OUTCOMES.iter().for_each(|outcome| drop(renew_total(outcome)));
    LazyLock::force(&RELEASED);
    LazyLock::force(&WAITED);
    CUT_OFF_REASONS.iter().for_each(|reason| drop(watches_cut_off_total(*reason)));
    CLOSED_REASONS.iter().for_each(|reason| drop(connections_closed_total(*reason)));
}

static RELEASED: LazyLock<Counter> = LazyLock::new(|| counter!("ringfence_release_total"));
static WAITED: LazyLock<Histogram> = LazyLock::new(|| histogram!("ringfence_acquire_wait_seconds"));

const CUT_OFF_REASONS: [CutOffReason; 2] = [CutOffReason::TooSlow, CutOffReason::StateReplaced];

/// Why a connection was closed here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closed {
    /// There were too many, and it was idle for longest.
    Evicted,
    /// There were too many, and none was idle.
    Refused,
    /// Nothing of a request came for long.
    Silent,
    /// The head of a request did not arrive in time.
    Late,
    /// Its answer was not read for long, or others needed the memory.
    Unread,
}

const CLOSED_REASONS: [Closed; 5] =
    [Closed::Evicted, Closed::Refused, Closed::Silent, Closed::Late, Closed::Unread];

/// Connections that this node closed.
pub(crate) fn connections_closed_total(reason: Closed) -> Counter {
    let reason = match reason {
        Closed::Evicted => "evicted",
        Closed::Refused => "refused",
        Closed::Silent => "silent",
        Closed::Late => "late",
        Closed::Unread => "unread",
    };
    counter!("ringfence_http_connections_closed_total", "reason" => reason)
}

/// Watches that this node ended.
pub(crate) fn watches_cut_off_total(reason: CutOffReason) -> Counter {
    let reason = match reason {
        CutOffReason::TooSlow => "too-slow",
        CutOffReason::StateReplaced => "state-replaced",
    };
    counter!("ringfence_watches_cut_off_total", "reason" => reason)
}

fn acquire_total(outcome: &'static str) -> Counter {
    counter!("ringfence_acquire_total", "outcome" => outcome)
}

fn renew_total(outcome: &'static str) -> Counter {
    counter!("ringfence_renew_total", "outcome" => outcome)
}

/// Where something is measured, by its labels. To look that up among all measurements costs more than to measure.
struct ByLabel<L, M>(RwLock<HashMap<L, M>>);

impl<L, M> Default for ByLabel<L, M> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<L: Copy + Eq + Hash, M: Clone> ByLabel<L, M> {
    fn get(&self, label: L, new: impl FnOnce() -> M) -> M {
        let known =
            self.0.read().expect("nothing that panics is done while it is locked").get(&label).cloned();
        known.unwrap_or_else(|| {
            let new = new();
            self.0
                .write()
                .expect("nothing that panics is done while it is locked")
                .insert(label, new.clone());
            new
        })
    }
}

/// Where the requests of one method, route and status are counted and timed.
#[derive(Clone)]
struct Ended {
    requests: Counter,
    seconds: Histogram,
}

/// A request on this route was answered with `status`, or its connection closed before. `method` is one of [`method`]'s.
pub(crate) fn ended(method: &'static str, route: &'static str, status: Option<StatusCode>, took: Duration) {
    type Labels = (&'static str, &'static str, Option<StatusCode>);
    static ENDED: LazyLock<ByLabel<Labels, Ended>> = LazyLock::new(ByLabel::default);
    let ended = ENDED.get((method, route, status), || {
        let label = status.as_ref().map_or("closed", StatusCode::as_str).to_owned();
        Ended {
            requests: counter!(
                "ringfence_http_requests_total", "method" => method, "route" => route, "status" => label
            ),
            seconds: histogram!(
                "ringfence_http_request_duration_seconds", "method" => method, "route" => route
            ),
        }
    });
    ended.requests.increment(1);
    ended.seconds.record(took);
}

/// A method as a label: those of the API by name, as a client may send any word for one.
pub(crate) fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// An acquire was answered: with 201, 200 or 202, or with a problem.
pub(crate) fn acquired(result: Result<StatusCode, &Failed>) {
    static ACQUIRED: LazyLock<ByLabel<&str, Counter>> = LazyLock::new(ByLabel::default);
    let outcome = match result {
        Ok(StatusCode::CREATED) => "granted",
        Ok(StatusCode::OK) => "standing",
        Ok(_) => "waiting",
        Err(failed) => failed.name(),
    };
    ACQUIRED.get(outcome, || acquire_total(outcome)).increment(1);
}

/// An acquire was granted after it had waited in the queue.
pub(crate) fn waited(took: Duration) {
    WAITED.record(took);
}

/// A renewal was answered.
pub(crate) fn renewed(failed: Option<&Failed>) {
    static RENEWED: LazyLock<ByLabel<&str, Counter>> = LazyLock::new(ByLabel::default);
    let outcome = failed.map_or("renewed", Failed::name);
    RENEWED.get(outcome, || renew_total(outcome)).increment(1);
}

/// A release was answered.
pub(crate) fn released() {
    RELEASED.increment(1);
}
