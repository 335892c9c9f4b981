//! Log lines, of target `ringfence::requests`, for requests that were slow, denied, abandoned, or failed in the cluster.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_service::{Ending, RequestLine, RequestLog};

use crate::measure;
use crate::request::requester::Requester;

/// A response extension: how long the request stood in a queue because it asked to. That does not make it slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub(crate) Duration);

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

impl<'a> OpenRequest<'a> {
    pub(crate) fn new(
        log: &'a RequestLog,
        requester: &'a Requester,
        method: &'static str,
        route: &'static str,
    ) -> Self {
        Self { log, requester, method, route, begun: Instant::now(), status: None, waited: Duration::ZERO }
    }

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
        let ending = match status {
            // An acquire that was abandoned may have asked to wait.
            None if method == "PUT" || route == "/v1/leases" => return,
            None => Ending::Abandoned,
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Ending::Denied,
            Some(status) if status.is_server_error() => Ending::Failed,
            Some(_) => Ending::Answered,
        };
        // Probes of `/readyz` are meant to wait for a leader and to fail without one.
        let line = if route == "/readyz" { None } else { log.take(ending, took.saturating_sub(waited)) };
        let Some(RequestLine { what, untold }) = line else { return };
        let (took_ms, waited_ms) = (took.as_millis() as u64, waited.as_millis() as u64);
        let (request_id, (trace_id, span_id)) = (requester.request_id(), requester.trace());
        tracing::warn!(
            target: "ringfence::requests",
            method, route, status = status.map(|status| status.as_u16()), took_ms, waited_ms,
            principal = requester.name(), from = %requester.from, request_id = &*request_id, trace_id, span_id,
            untold,
            "a request {what}"
        );
    }
}
