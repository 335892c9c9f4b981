//! The segment being written: a file that is zeroed ahead of its contents.

use std::io;
use std::path::{Path, PathBuf};

use crate::blocks::{BLOCK, BlockWriter};
use crate::dir;
use crate::disk::{Disk, File, Mode};
use crate::error::lacks_descriptors;
use crate::header::Header;
use crate::sector::SECTOR;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// The last segment of the log, open for writing.
#[derive(Debug)]
pub(crate) struct Segment {
    path: PathBuf,
    file: Box<dyn File>,
    /// `None` if flushes go through the page cache.
    blocks: Option<BlockWriter>,
    header: Header,
    /// Where the next flush goes.
    end: u64,
    /// Everything from `end` to here is zeros on disk.
    zeroed: u64,
}

impl Segment {
    /// Creates a segment in `dir`, which is open as `open_dir`. It is renamed to its final name when its header and first step are
    /// synced: a segment with that name has a whole header. All its descriptors are open before: running out of them leaves no
    /// segment behind.
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        open_dir: &dyn File,
        header: Header,
    ) -> io::Result<Self> {
        let temporary = dir::temporary_path(dir);
        let path = dir::segment_path(dir, header.first_sequence);
        if disk.exists(&path)? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        let file = disk.open(&temporary, Mode::Create)?;
        let direct = open_direct(disk, &temporary, &header)?;
        let end = SECTOR as u64;
        let zeroed = u64::from(header.step);
        file.write_at(&header.encode(), 0)?;
        write_zeros(&*file, end, zeroed)?;
        file.sync_all()?;
        let blocks = direct.and_then(|file| BlockWriter::new(file, end));
        disk.rename(&temporary, &path)?;
        open_dir.sync_all()?;
        Ok(Self { path, file, blocks, header, end, zeroed })
    }

    /// Continues a segment that was read: `last_flush` are the bytes of its last flush, which ends at `end`; `length` is
    /// that of the file.
    ///
    /// Rewrites what may not be on disk: the last flush, and the zeros behind it, which also wipe the remains of a torn
    /// flush. After a failed sync the page cache presents data as clean that the disk never got; another sync would
    /// succeed and prove nothing. Everything older was synced before the next flush was written. If interrupted, this
    /// leaves each sector either as it was or as it shall be. `length` has whole steps up to `end`, which recovery checked: what is zeroed then
    /// ends no sooner.
    pub(crate) fn resume(
        disk: &dyn Disk,
        path: PathBuf,
        file: Box<dyn File>,
        header: Header,
        last_flush: &[u8],
        end: u64,
        length: u64,
    ) -> io::Result<Self> {
        file.write_at(last_flush, end - last_flush.len() as u64)?;
        write_zeros(&*file, end, length)?;
        file.sync_all()?;
        // A last step that was not completed is zeroed again when it is needed.
        let zeroed = length - length % u64::from(header.step);
        let direct = open_direct(disk, &path, &header)?;
        let blocks = direct.and_then(|file| BlockWriter::new(file, end));
        Ok(Self { path, file, blocks, header, end, zeroed })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes used, the header included.
    pub(crate) fn used(&self) -> u64 {
        self.end
    }

    /// Writes one flush and waits until it is on disk.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.end + bytes.len() as u64;
        if end > self.zeroed {
            let zeroed = self.header.least_length(end);
            write_zeros(&*self.file, self.zeroed, zeroed)?;
            self.file.sync_data()?;
            self.zeroed = zeroed;
        }
        match &mut self.blocks {
            Some(blocks) => blocks.append(self.end, bytes)?,
            None => self.file.write_at(bytes, self.end)?,
        }
        self.file.sync_data()?;
        self.end = end;
        Ok(())
    }
}

/// The same file once more, to write past the page cache; `None` if that cannot be. The only error is a lack of
/// descriptors.
fn open_direct(disk: &dyn Disk, path: &Path, header: &Header) -> io::Result<Option<Box<dyn File>>> {
    if !(header.step as usize).is_multiple_of(BLOCK) {
        return Ok(None);
    }
    match disk.open(path, Mode::Direct) {
        Err(error) if lacks_descriptors(&error) => Err(error),
        opened => Ok(opened.ok()),
    }
}

/// Real zeros, not `fallocate`: with unwritten extents every `fdatasync` would have to commit metadata.
fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let length = (to - at).min(ZEROS.len() as u64);
        file.write_at(&ZEROS[..length as usize], at)?;
        at += length;
    }
    Ok(())
}
