//! What metrics and log lines, of target `ringfence::requests`, tell of a request.

use std::time::Duration;

use axum::http::StatusCode;
use ringfence_service::{Ending, Report, RequestLine, Service};

use crate::measure;
use crate::request::requester::Requester;

/// A request that is being answered.
pub(crate) struct Asked<'a> {
    pub(crate) service: &'a Service,
    pub(crate) requester: Requester,
    /// One of [`measure::method`]'s.
    pub(crate) method: &'static str,
    pub(crate) route: &'static str,
    /// The status of the response. `None`: its connection closed before.
    pub(crate) status: Option<StatusCode>,
}

impl Asked<'_> {
    /// How a request ends that is answered with `status`.
    pub(crate) fn ending(status: StatusCode) -> Ending {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ending::Denied,
            status if status.is_server_error() => Ending::Failed,
            _ => Ending::Answered,
        }
    }
}

impl Report for Asked<'_> {
    fn service(&self) -> &Service {
        self.service
    }

    fn measure(&self, took: Duration) {
        measure::request_ended(self.method, self.route, self.status, took);
    }

    fn may_log(&self, ending: Ending) -> bool {
        match ending {
            // Probes are meant to wait for a leader and to fail without one.
            _ if self.route == "/readyz" => false,
            // An acquire that was abandoned may have asked to wait.
            Ending::Abandoned => self.method != "PUT" && self.route != "/v1/leases",
            Ending::Answered | Ending::Denied | Ending::Limited | Ending::Failed => true,
        }
    }

    fn log(&self, line: &RequestLine<'_>) {
        let Self { requester, method, route, status, .. } = self;
        let RequestLine { what, took_ms, waited_ms, principal, untold } = line;
        let (request_id, (trace_id, span_id)) = (requester.request_id(), requester.trace());
        tracing::warn!(
            target: "ringfence::requests",
            method, route, status = status.map(|status| status.as_u16()), took_ms, waited_ms,
            principal, from = %requester.from, request_id = &*request_id, trace_id, span_id, untold,
            "a request {what}"
        );
    }
}
