//! Metrics of the API. Labels are routes and statuses, never values that a client chose.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use ringfence_metric::{Counter, Histogram, metrics};

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
    ).by_several(&["method", "route", "status"]);
    REQUEST_SECONDS: Histogram = Histogram::new(
        "ringfence_http_request_duration_seconds",
        "Time from the head of a request to its response, or to the end of its connection, by method and route. Includes the wait of an acquire.",
    ).by_several(&["method", "route"]);
}

/// A request was answered with `status`, or its connection closed before. `method` is one of [`method`]'s.
pub(crate) fn request_ended(method: &str, route: &str, status: Option<StatusCode>, took: Duration) {
    let status = status.as_ref().map_or("closed", StatusCode::as_str);
    REQUESTS.of_all(&[method, route, status]).increment(1);
    REQUEST_SECONDS.of_all(&[method, route]).record(took);
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
