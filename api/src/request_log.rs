//! Log lines, of target `ringfence::requests`, for requests that were slow, denied, abandoned, or failed in the cluster.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;

use crate::measure;
use crate::request::requester::Requester;

/// Lines in a window. When everything is slow every request is, so the rest is only counted; the next line has the count.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// A response extension: how long the request stood in a queue because it asked to. That does not make it slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub(crate) Duration);

pub(crate) struct RequestLog {
    slow: Duration,
    lines: Mutex<Lines>,
    /// Apart, so that whoever is denied again and again does not hide what fails.
    denials: Mutex<Lines>,
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
        let lines = || Mutex::new(Lines { since: Instant::now(), written: 0, suppressed: 0 });
        Self { slow, lines: lines(), denials: lines() }
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
        let lines = lines.lock().map(|mut lines| lines.take(Instant::now()));
        let Some(suppressed) = lines.expect("nothing panics while this is locked") else { return };
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
            principal = requester.name(), from = %requester.from, %request_id, trace_id, span_id,
            untold = (suppressed > 0).then_some(suppressed),
            "a request {what}"
        );
    }
}

/// The lines of the current window.
struct Lines {
    since: Instant,
    written: u32,
    suppressed: u64,
}

impl Lines {
    /// Takes a line. Returns how many were suppressed before it; `None` if this one is.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.written) = (now, 0);
        }
        if self.written == MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_second_and_the_next_one_counts_the_suppressed() {
        let start = Instant::now();
        let mut lines = Lines { since: start, written: 0, suppressed: 0 };
        let taken: Vec<_> = (0..MAX_LINES + 5).map(|_| lines.take(start)).collect();
        assert_eq!(taken.iter().flatten().count(), MAX_LINES as usize);
        assert_eq!(lines.take(start + WINDOW), Some(5));
        assert_eq!(lines.take(start + WINDOW), Some(0));
    }
}
