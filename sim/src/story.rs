//! What happens in a run, for people: one line for each thing.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When, in milliseconds.
    pub at: u64,
    /// What, in plain words.
    pub what: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8}.{:03} s  {}", self.at / 1_000, self.at % 1_000, self.what)
    }
}

/// The story of a run. Clones are the same one.
#[derive(Clone, Default)]
pub struct Story {
    lines: Arc<Mutex<Vec<Line>>>,
    is_full: bool,
}

impl Story {
    /// An empty story. `is_full`: it will have every message and every operation of a disk.
    pub fn new(is_full: bool) -> Self {
        Self { lines: Arc::default(), is_full }
    }

    /// Adds a line.
    pub fn tell(&self, at: u64, what: impl Into<String>) {
        self.lines().push(Line { at, what: what.into() });
    }

    /// Adds a line to a full story.
    pub fn detail(&self, at: u64, what: impl FnOnce() -> String) {
        if self.is_full {
            self.tell(at, what());
        }
    }

    /// The lines since the last call, by time.
    pub fn take(&self) -> Vec<Line> {
        let mut lines = std::mem::take(&mut *self.lines());
        lines.sort_by_key(|line| line.at);
        lines
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().expect("nothing panics while the story is locked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_story_has_details() {
        for (is_full, lines) in [(false, 1), (true, 2)] {
            let story = Story::new(is_full);
            story.detail(1_002, || "node 1 syncs".to_owned());
            story.tell(1_001, "node 1 starts");
            let told = story.take();
            assert_eq!(told.len(), lines);
            assert_eq!(told[0].to_string(), "       1.001 s  node 1 starts");
        }
    }
}
