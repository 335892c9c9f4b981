//! What the door measures, and `/metrics`. Labels are routes, statuses and outcomes: never what a client chose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, RwLock};
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use metrics::{Counter, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use ringfence_raft::{Role, Status};

use crate::door::{Answer, Door};
use crate::problems::Failed;
use crate::query::Query;

/// The upper ends of the buckets of everything that is measured in seconds: from a batch in memory to the longest wait.
const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0,
];

/// A recorder that knows the buckets of what this program measures, to be installed once by the process, before anything is
/// measured.
pub fn metrics_builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .expect("there is at least one bucket")
}

/// `GET /metrics`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    set_gauges(&door.handle.status(), door.watchers.count());
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(CONTENT_TYPE, content_type)], door.options.metrics.render()).into_response())
}

/// Read when asked for, not kept up to date.
fn set_gauges(status: &Status, watchers: usize) {
    let set = |name: &'static str, value: u64| gauge!(name).set(value as f64);
    set("ringfence_raft_has_leader", status.leader.is_some().into());
    set("ringfence_raft_is_leader", (status.role == Role::Leader).into());
    set("ringfence_raft_term", status.term);
    set("ringfence_raft_last_log_index", status.last_log_index.unwrap_or(0));
    set("ringfence_raft_committed_index", status.committed_index.unwrap_or(0));
    set("ringfence_raft_applied_index", status.applied_index.unwrap_or(0));
    set("ringfence_revision", status.revision);
    set("ringfence_leases_live", status.live_leases as u64);
    set("ringfence_waiters", status.waiters as u64);
    set("ringfence_watchers", watchers as u64);
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

/// Where the requests of one route with one status are counted and timed.
#[derive(Clone)]
struct Answered {
    requests: Counter,
    seconds: Histogram,
}

/// A request was answered on this route.
pub(crate) fn answered(route: &'static str, status: StatusCode, took: Duration) {
    static ANSWERED: LazyLock<ByLabel<(&str, StatusCode), Answered>> = LazyLock::new(ByLabel::default);
    let answered = ANSWERED.get((route, status), || {
        let label = status.as_str().to_owned();
        Answered {
            requests: counter!("ringfence_http_requests_total", "route" => route, "status" => label),
            seconds: histogram!("ringfence_http_request_seconds", "route" => route),
        }
    });
    answered.requests.increment(1);
    answered.seconds.record(took);
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
    let new = || counter!("ringfence_acquire_total", "outcome" => outcome);
    ACQUIRED.get(outcome, new).increment(1);
}

/// An acquire was granted after it had waited in the queue.
pub(crate) fn waited(took: Duration) {
    histogram!("ringfence_acquire_wait_seconds").record(took);
}

/// A renewal was answered.
pub(crate) fn renewed(failed: Option<&Failed>) {
    static RENEWED: LazyLock<ByLabel<&str, Counter>> = LazyLock::new(ByLabel::default);
    let outcome = failed.map_or("renewed", Failed::name);
    RENEWED.get(outcome, || counter!("ringfence_renew_total", "outcome" => outcome)).increment(1);
}

/// A release was answered.
pub(crate) fn released() {
    static RELEASED: LazyLock<Counter> = LazyLock::new(|| counter!("ringfence_release_total"));
    RELEASED.increment(1);
}
