use std::time::Duration;

use ringfence_raft::Lines;

/// Decides which requests get a log line: those that were slow, denied or abandoned, or failed in the cluster.
pub(crate) struct RequestLog {
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
    /// It was answered that its client sends too many.
    Limited,
    /// It was answered that the cluster did not do it.
    Failed,
    /// Its connection closed before an answer.
    Abandoned,
}

/// A log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// What happened to the request: `failed`.
    pub what: &'static str,
    /// How long its work took.
    pub took_ms: u64,
    /// For how much of that it stood in a queue because it asked to.
    pub waited_ms: u64,
    /// The principal that sent it.
    pub principal: Option<&'a str>,
    /// How many lines were left out before this one, if any.
    pub untold: Option<u64>,
}

impl RequestLog {
    /// Logs requests that take `slow` or longer.
    pub(crate) fn new(slow: Duration) -> Self {
        Self { slow, lines: Lines::default(), denials: Lines::default() }
    }

    /// What the log line of a request says, and how many were left out before it, if it gets one. `took` does not count the time that the
    /// request asked to wait.
    pub(crate) fn take(&self, ending: Ending, took: Duration) -> Option<(&'static str, Option<u64>)> {
        let is_logged = matches!(ending, Ending::Denied | Ending::Failed) || took >= self.slow;
        let lines = if ending == Ending::Denied { &self.denials } else { &self.lines };
        let untold = if is_logged { lines.take()? } else { return None };
        let what = match ending {
            Ending::Answered | Ending::Limited => "took long",
            Ending::Denied => "was denied",
            Ending::Failed => "failed",
            Ending::Abandoned => "was abandoned",
        };
        Some((what, (untold > 0).then_some(untold)))
    }
}
