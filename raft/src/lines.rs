//! A bound on the log lines that others can cause.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Lines that may be written at once. More are only counted; the next line has the count.
const MAX_LINES: u32 = 100;
/// The time after which one more may be written.
const PER_LINE: Duration = Duration::from_secs(5);

/// Log lines of one kind. A hundred may be written at once, and one in five seconds from then on: 5 MB a day.
#[derive(Default)]
pub struct Lines(Mutex<State>);

#[derive(Default)]
struct State {
    /// When as many may be written at once as ever.
    full: Option<Instant>,
    suppressed: u64,
}

impl Lines {
    /// Takes a line. Returns how many were suppressed before it; `None` if this one is.
    pub fn take(&self) -> Option<u64> {
        self.0.lock().expect("nothing panics while this is locked").take(Instant::now())
    }
}

impl State {
    fn take(&mut self, now: Instant) -> Option<u64> {
        let full = self.full.map_or(now, |full| full.max(now)) + PER_LINE;
        if full > now + PER_LINE * MAX_LINES {
            self.suppressed += 1;
            return None;
        }
        self.full = Some(full);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Says that the connection of a peer was closed by an error, unless too many were: anybody can cause that.
pub(crate) fn warn_closed(lines: &Lines, from: &str, error: &io::Error) {
    let Some(untold) = lines.take() else { return };
    tracing::warn!(%from, %error, untold = (untold > 0).then_some(untold), "peer connection closed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_the_next_one_counts_the_suppressed() {
        let start = Instant::now();
        let mut lines = State::default();
        let mut taken = |after: Duration| {
            let taken: Vec<_> = (0..MAX_LINES + 5).map(|_| lines.take(start + after)).collect();
            (taken.iter().flatten().count(), taken[0])
        };
        assert_eq!(taken(Duration::ZERO), (100, Some(0)));
        assert_eq!(taken(PER_LINE / 2), (0, None), "it does not stay silent for long");
        assert_eq!(taken(PER_LINE * 2), (2, Some(5 + 105)));
        assert_eq!(taken(PER_LINE * 1_000), (100, Some(103)));
    }
}
