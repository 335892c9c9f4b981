//! Sizes, and the hook for metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sector::SECTOR;

/// How a log is kept. The sizes may differ from one opening to the next.
#[derive(Clone)]
pub struct Options {
    /// A segment that would grow beyond this is followed by a new one. 64 MiB.
    pub segment_bytes: u64,
    /// Segments are zeroed ahead by this much at a time. 4 MiB; rounded up to whole sectors, at least two. Of whole
    /// blocks of 4 KiB, or flushes go through the page cache.
    pub step_bytes: u32,
    /// No more than this is written at once, unless a single record is larger. 16 MiB.
    pub flush_bytes: usize,
    /// Called by the flusher thread after each flush, with its duration and size in bytes.
    pub on_flush: Option<OnFlush>,
}

/// The type of [`Options::on_flush`].
pub type OnFlush = Arc<dyn Fn(Duration, usize) + Send + Sync>;

impl Options {
    /// With a step that the file format allows, and flushes that fit a segment with its header and the note
    /// that the log goes on in the next.
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

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("segment_bytes", &self.segment_bytes)
            .field("step_bytes", &self.step_bytes)
            .field("flush_bytes", &self.flush_bytes)
            .finish_non_exhaustive()
    }
}
