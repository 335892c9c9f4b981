//! The segments of an open log: the one being written, the next one, and those to delete.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dir;
use crate::disk::{Disk, File};
use crate::error::lacks_descriptors;
use crate::flush::FlushBuffer;
use crate::frame::NOTE_ROLLED;
use crate::header::Header;
use crate::options::Options;
use crate::sector::SECTOR;
use crate::segment::Segment;

/// Room kept in every segment for the note that the log continues in the next.
const ROLL_NOTE: u64 = SECTOR as u64;

pub(crate) struct Segments {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    /// The same, open to be synced: there may be no descriptor when one is needed.
    pub(crate) open_dir: Arc<dyn File>,
    /// First sequences of all segments, the active one included.
    pub(crate) firsts: Vec<u64>,
    pub(crate) active: Segment,
    /// Whether the active segment grows beyond its size for lack of a descriptor.
    pub(crate) is_overlong: bool,
    pub(crate) next_flush: u64,
    /// Sequence of the next record to write.
    pub(crate) next_sequence: u64,
}

impl Segments {
    /// The file being written.
    pub(crate) fn path(&self) -> &Path {
        self.active.path()
    }

    /// Writes one flush, with the records before `next_sequence`, and waits until it is on disk. If it does not fit the
    /// active segment, it goes to a new one.
    pub(crate) fn write(&mut self, flush: &mut FlushBuffer, next_sequence: u64) -> io::Result<()> {
        let end = self.active.used() + flush.len() as u64 + ROLL_NOTE;
        // A segment is named by its first record, so one without a record yet takes any flush, even one larger than a
        // segment.
        let has_records = self.active.header().first_sequence < self.next_sequence;
        if end > self.options.segment_bytes && has_records {
            self.roll()?;
        }
        self.write_here(flush)?;
        self.next_sequence = next_sequence;
        Ok(())
    }

    fn write_here(&mut self, flush: &mut FlushBuffer) -> io::Result<()> {
        let sealed = flush.seal(self.next_flush, self.active.header().seed());
        self.active.write(sealed)?;
        self.next_flush += 1;
        Ok(())
    }

    /// Continues in a new segment, and then notes so at the end of the old one: from then on the loss of the new segment
    /// is noticed. Without a descriptor for it the old one has to do until the next flush.
    fn roll(&mut self) -> io::Result<()> {
        let first_sequence = self.next_sequence;
        let log = self.active.header().log;
        // The note takes a number before it.
        let (first_flush, step) = (self.next_flush + 1, self.options.step_bytes);
        let header = Header { log, first_flush, first_sequence, step };
        let new = match Segment::create(&*self.disk, &self.dir, &*self.open_dir, header) {
            Err(error) if lacks_descriptors(&error) => {
                if !std::mem::replace(&mut self.is_overlong, true) {
                    tracing::warn!(%error, "the log cannot continue in a new segment yet");
                }
                return Ok(());
            }
            created => created?,
        };
        self.is_overlong = false;
        let mut note = FlushBuffer::default();
        note.push(NOTE_ROLLED, first_sequence, &[]);
        self.write_here(&mut note)?;
        self.active = new;
        self.firsts.push(first_sequence);
        Ok(())
    }

    /// The first sequence that is left when the segments wholly before `before` are deleted; `None` if there are none.
    pub(crate) fn first_kept(&self, before: u64) -> Option<u64> {
        self.firsts[1..].iter().copied().take_while(|&first| first <= before).last()
    }

    /// Takes the segments before `kept` off the list, and returns what deletes their files: oldest first, each durable
    /// before the next, so that no crash leaves a gap.
    pub(crate) fn delete(&mut self, kept: u64) -> impl FnOnce() -> io::Result<()> + Send + use<> {
        let count = self.firsts.partition_point(|&first| first < kept);
        let gone: Vec<u64> = self.firsts.drain(..count).collect();
        let (disk, dir, open_dir) = (Arc::clone(&self.disk), self.dir.clone(), Arc::clone(&self.open_dir));
        move || {
            for first in gone {
                disk.remove(&dir::segment_path(&dir, first))?;
                open_dir.sync_all()?;
            }
            Ok(())
        }
    }
}
