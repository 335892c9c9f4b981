//! Lines for requests that took long, failed in the cluster or were given up, of the target `ringfence::requests`.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::response::Response;

use crate::request::asker::Asker;

/// Where everything is slow each request is: so many are told of in a second, and the next one says how many were not.
const MAX_LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(1);

/// How long a request stood in a queue because it asked to, at most `wait_ms`: that is not what makes it slow. In the
/// extensions of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited(pub(crate) Duration);

pub(crate) struct RequestLog {
    slow: Duration,
    budget: Mutex<Budget>,
}

/// A request that was answered, or whose connection closed before that.
pub(crate) struct Ended<'a> {
    pub(crate) asker: &'a Asker,
    pub(crate) method: &'static str,
    pub(crate) route: &'static str,
    pub(crate) response: Option<&'a Response>,
    pub(crate) took: Duration,
}

impl RequestLog {
    /// A request that takes `slow` or longer is told of.
    pub(crate) fn new(slow: Duration) -> Self {
        Self { slow, budget: Mutex::new(Budget { since: Instant::now(), lines: 0, untold: 0 }) }
    }

    pub(crate) fn ended(&self, ended: &Ended<'_>) {
        let failed = ended.response.is_some_and(|response| response.status().is_server_error());
        if ended.took < self.slow && !failed {
            return;
        }
        let Ended { asker, method, route, response, took } = *ended;
        let waited = response.and_then(|response| response.extensions().get());
        let waited = waited.map_or(Duration::ZERO, |Waited(waited)| *waited);
        // To wait for a leader, and to say that there is none, is what a probe is for.
        if route == "/readyz" || !failed && took.saturating_sub(waited) < self.slow {
            return;
        }
        // Of an acquire that was given up nobody knows whether it asked to wait.
        if response.is_none() && (method == "PUT" || route == "/v1/leases") {
            return;
        }
        let mut budget = self.budget.lock().expect("nothing that panics is done while it is locked");
        let Some(untold) = budget.take(Instant::now()) else { return };
        drop(budget);
        let what = match response {
            None => "was given up",
            Some(_) if failed => "failed",
            Some(_) => "took long",
        };
        let (took_ms, waited_ms) = (took.as_millis() as u64, waited.as_millis() as u64);
        let (request_id, (trace_id, span_id)) = (asker.request_id(), asker.trace());
        tracing::warn!(
            target: "ringfence::requests",
            method, route, status = response.map(|response| response.status().as_u16()), took_ms, waited_ms,
            from = %asker.from, %request_id, trace_id, span_id, untold = (untold > 0).then_some(untold),
            "a request {what}"
        );
    }
}

/// The lines that were written in this window.
struct Budget {
    since: Instant,
    lines: u32,
    untold: u64,
}

impl Budget {
    /// Takes a line; gives how many were refused since the last. `None`: no more for now.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines == MAX_LINES {
            self.untold += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_few_lines_and_the_next_tells_how_many_there_would_have_been() {
        let start = Instant::now();
        let mut budget = Budget { since: start, lines: 0, untold: 0 };
        let taken: Vec<_> = (0..MAX_LINES + 5).map(|_| budget.take(start)).collect();
        assert_eq!(taken.iter().flatten().count(), MAX_LINES as usize);
        assert_eq!(budget.take(start + WINDOW), Some(5));
        assert_eq!(budget.take(start + WINDOW), Some(0));
    }
}
