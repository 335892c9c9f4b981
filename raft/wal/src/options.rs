//! Sizes, and the hook for metrics.

use std::sync::Arc;
use std::time::Duration;

use crate::sector::SECTOR;

/// How to keep a log. The sizes may differ from one opening to the next.
#[derive(Clone)]
pub struct Options {
    /// A segment that would grow beyond this is followed by a new one. 64 MiB.
    pub segment_bytes: u64,
    /// Segments are zeroed ahead by this much at a time. 4 MiB; rounded up to whole sectors, at least two. Flushes bypass
    /// the page cache only if it is a multiple of 4 KiB.
    pub step_bytes: u32,
    /// The most that one flush writes, unless a single record is larger. 16 MiB.
    pub flush_bytes: usize,
    /// Called by the flusher after each flush, with its duration and size in bytes.
    pub on_flush: Option<OnFlush>,
}

/// The type of [`Options::on_flush`].
pub type OnFlush = Arc<dyn Fn(Duration, usize) + Send + Sync>;

impl Options {
    /// Rounds the step to one that the format allows, and limits flushes so that one fits a segment with its header and
    /// roll note.
    pub(crate) fn rounded(mut self) -> Self {
        let room = self.segment_bytes.saturating_sub(2 * SECTOR as u64);
        self.flush_bytes = self.flush_bytes.min(usize::try_from(room).unwrap_or(usize::MAX));
        let sector = SECTOR as u32;
        let most = u32::MAX / sector * sector;
        self.step_bytes = self.step_bytes.clamp(2 * sector, most).next_multiple_of(sector);
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, step_bytes: 4 << 20, flush_bytes: 16 << 20, on_flush: None }
    }
}
