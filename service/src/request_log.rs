use std::time::Duration;

use ringfence_raft::Lines;

/// Decides which requests get a log line: those that were slow, denied or abandoned, or failed in the cluster.
pub struct RequestLog {
    slow: Duration,
    lines: Lines,
    /// Counted apart, so that many denied requests do not hide the failed ones.
    denials: Lines,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was answered.
    Answered,
    /// It was answered that its client may not do this.
    Denied,
    /// It was answered that the cluster did not do it.
    Failed,
    /// Its connection closed before an answer.
    Abandoned,
}

/// A log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine {
    /// What happened to the request: `failed`.
    pub what: &'static str,
    /// How many lines were left out before this one, if any.
    pub untold: Option<u64>,
}

impl RequestLog {
    /// Logs requests that take `slow` or longer.
    pub fn new(slow: Duration) -> Self {
        Self { slow, lines: Lines::default(), denials: Lines::default() }
    }

    /// The log line of a request, if it gets one. `took` does not count the time that the request asked to wait.
    pub fn take(&self, ending: Ending, took: Duration) -> Option<RequestLine> {
        let is_logged = matches!(ending, Ending::Denied | Ending::Failed) || took >= self.slow;
        let lines = if ending == Ending::Denied { &self.denials } else { &self.lines };
        let untold = if is_logged { lines.take()? } else { return None };
        let what = match ending {
            Ending::Answered => "took long",
            Ending::Denied => "was denied",
            Ending::Failed => "failed",
            Ending::Abandoned => "was abandoned",
        };
        Some(RequestLine { what, untold: (untold > 0).then_some(untold) })
    }
}
