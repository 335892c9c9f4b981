//! Log lines, of target `ringfence::requests`, for requests that were slow, denied, abandoned, or failed in the cluster.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_raft::Lines;

use crate::measure;
use crate::request::requester::Requester;

/// A response extension: how long the request stood in a queue because it asked to. That does not make it slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub(crate) Duration);

pub(crate) struct RequestLog {
    slow: Duration,
    lines: Lines,
    /// Apart, so that whoever is denied again and again does not hide what fails.
    denials: Lines,
}

/// A request that is being answered. Dropping it measures and logs its end: without a response, its connection closed.
pub(crate) struct OpenRequest<'a> {
    log: &'a RequestLog,
    requester: &'a Requester,
    method: &'static str,
    route: &'static str,
    begun: Instant,
    status: Option<StatusCode>,
    waited: Duration,
}

impl RequestLog {
    /// Logs requests that take `slow` or longer.
    pub(crate) fn new(slow: Duration) -> Self {
        Self { slow, lines: Lines::default(), denials: Lines::default() }
    }

    pub(crate) fn open<'a>(
        &'a self,
        requester: &'a Requester,
        method: &'static str,
        route: &'static str,
    ) -> OpenRequest<'a> {
        let begun = Instant::now();
        OpenRequest { log: self, requester, method, route, begun, status: None, waited: Duration::ZERO }
    }
}

impl OpenRequest<'_> {
    pub(crate) fn answered(mut self, response: &Response) {
        self.status = Some(response.status());
        self.waited = response.extensions().get().map_or(Duration::ZERO, |Waited(waited)| *waited);
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let Self { log, requester, method, route, begun, status, waited } = *self;
        let took = begun.elapsed();
        measure::request_ended(method, route, status, took);
        let failed = status.is_some_and(|status| status.is_server_error());
        let denied = matches!(status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN));
        // Probes of `/readyz` are meant to wait for a leader and to fail without one.
        if route == "/readyz" || !failed && !denied && took.saturating_sub(waited) < log.slow {
            return;
        }
        // An acquire that was abandoned may have asked to wait.
        if status.is_none() && (method == "PUT" || route == "/v1/leases") {
            return;
        }
        let lines = if denied { &log.denials } else { &log.lines };
        let Some(untold) = lines.take() else { return };
        let what = match status {
            None => "was abandoned",
            Some(_) if failed => "failed",
            Some(_) if denied => "was denied",
            Some(_) => "took long",
        };
        let (took_ms, waited_ms) = (took.as_millis() as u64, waited.as_millis() as u64);
        let (request_id, (trace_id, span_id)) = (requester.request_id(), requester.trace());
        tracing::warn!(
            target: "ringfence::requests",
            method, route, status = status.map(|status| status.as_u16()), took_ms, waited_ms,
            principal = requester.name(), from = %requester.from, request_id = &*request_id, trace_id, span_id,
            untold = (untold > 0).then_some(untold),
            "a request {what}"
        );
    }
}
