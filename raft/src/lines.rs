//! A bound on the log lines that others can cause.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Lines in a window. More are only counted; the next line has the count.
const MAX_LINES: u32 = 100;
const WINDOW: Duration = Duration::from_secs(10);

/// Log lines of one kind, of which a hundred may be written in ten seconds.
#[derive(Default)]
pub struct Lines(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the current window began.
    since: Option<Instant>,
    written: u32,
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
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.since, self.written) = (Some(now), 0);
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
    fn lines_are_limited_and_the_next_one_counts_the_suppressed() {
        let start = Instant::now();
        let mut lines = State::default();
        let taken: Vec<_> = (0..MAX_LINES + 5).map(|_| lines.take(start)).collect();
        assert_eq!(taken.iter().flatten().count(), MAX_LINES as usize);
        assert_eq!(lines.take(start + WINDOW), Some(5));
        assert_eq!(lines.take(start + WINDOW), Some(0));
    }
}
