//! Metrics of the API. Labels are routes and statuses, never values that a client chose.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{LazyLock, RwLock};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics::{counter, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use ringfence_metric::{Counter, Gauge, Histogram, metrics};

/// Bucket bounds of all metrics in seconds: from a batch in memory to the longest wait.
const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0,
];

/// A recorder with the buckets of this program's metrics. The process installs it once, before it measures anything.
pub fn metrics_builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)
        .expect("there is at least one bucket")
}

metrics! {
    pub METRICS;
    REQUESTS: Counter = Counter::new(
        "ringfence_http_requests_total",
        "Requests to this node, by method, route and status; closed if the connection closed before the response.",
    ).by_several();
    REQUEST_SECONDS: Histogram = Histogram::new(
        "ringfence_http_request_duration_seconds",
        "Time from the head of a request to its response, or to the end of its connection, by method and route. Includes the wait of an acquire.",
    ).by_several();
    CONNECTIONS: Gauge = Gauge::new("ringfence_http_connections", "Open client connections.");
    CONNECTIONS_MOST: Gauge = Gauge::new(
        "ringfence_http_connections_most",
        "Maximum number of client connections.",
    );
}

/// Metrics by label. Looking one up in the recorder costs more than measuring.
struct Cache<L, M>(LazyLock<RwLock<HashMap<L, M>>>);

impl<L: Copy + Eq + Hash, M: Clone> Cache<L, M> {
    const fn new() -> Self {
        Self(LazyLock::new(RwLock::default))
    }

    fn get(&self, label: L, new: impl FnOnce() -> M) -> M {
        let cached = self.0.read().expect("nothing panics while this is locked").get(&label).cloned();
        cached.unwrap_or_else(|| {
            let mut all = self.0.write().expect("nothing panics while this is locked");
            all.entry(label).or_insert_with(new).clone()
        })
    }
}

/// A request was answered with `status`, or its connection closed before. `method` is one of [`method`]'s.
pub(crate) fn request_ended(
    method: &'static str,
    route: &'static str,
    status: Option<StatusCode>,
    took: Duration,
) {
    type Labels = (&'static str, &'static str, Option<StatusCode>);
    static ENDED: Cache<Labels, (metrics::Counter, metrics::Histogram)> = Cache::new();
    let (requests, seconds) = ENDED.get((method, route, status), || {
        let status = status.as_ref().map_or("closed", StatusCode::as_str).to_owned();
        (
            counter!(REQUESTS.name, "method" => method, "route" => route, "status" => status),
            histogram!(REQUEST_SECONDS.name, "method" => method, "route" => route),
        )
    });
    requests.increment(1);
    seconds.record(took);
}

/// The label of a method. Clients may send any word, so only methods of the API have one of their own.
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
