//! The segment being written: a file that is zeroed ahead of what it holds.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::blocks::{BLOCK, BlockWriter};
use crate::folder;
use crate::header::Header;
use crate::sector::SECTOR;

static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// The last segment of the log, open for writing.
#[derive(Debug)]
pub(crate) struct Segment {
    path: PathBuf,
    file: File,
    /// `None` where flushes go through the page cache.
    blocks: Option<BlockWriter>,
    header: Header,
    /// Where the next flush goes.
    end: u64,
    /// Everything from `end` to here is zeros on disk.
    zeroed: u64,
}

impl Segment {
    /// Makes a new segment in `dir`, which is open as `folder`. It has its name only once header and first step are on
    /// disk, so a header is always whole; and once nothing is to be opened any more, so it has none if that fails.
    pub(crate) fn create(dir: &Path, folder: &File, header: Header) -> io::Result<Self> {
        let temporary = folder::temporary_path(dir);
        let path = folder::segment_path(dir, header.first_sequence);
        if path.try_exists()? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&temporary)?;
        // A second descriptor is needed below: it would be a pity to write all this in vain.
        let second = file.try_clone()?;
        let zeroed = u64::from(header.step);
        file.write_all_at(&header.encode(), 0)?;
        write_zeros(&file, SECTOR as u64, zeroed)?;
        file.sync_all()?;
        drop(second);
        let blocks = blocks(&temporary, &header, SECTOR as u64)?;
        fs::rename(&temporary, &path)?;
        folder.sync_all()?;
        Ok(Self { path, file, blocks, header, end: SECTOR as u64, zeroed })
    }

    /// Goes on with a segment that was read. `last_flush` are the bytes of its last flush, which ends at
    /// `end`, and `length` is that of the file.
    ///
    /// Writes again what cannot be known to be on disk: the last flush, and the zeros behind it (which also
    /// wipes the remains of a torn flush). After a failed sync the page cache shows data as clean that the
    /// disk never got; a sync alone would succeed and prove nothing. Everything older was synced before the
    /// next flush was written. Interrupted, this leaves each sector as it was or as it shall be.
    pub(crate) fn resume(
        path: PathBuf,
        file: File,
        header: Header,
        last_flush: &[u8],
        end: u64,
        length: u64,
    ) -> io::Result<Self> {
        file.write_all_at(last_flush, end - last_flush.len() as u64)?;
        write_zeros(&file, end, length)?;
        file.sync_all()?;
        // A last step that was not completed is zeroed again when it is needed.
        let zeroed = length - length % u64::from(header.step);
        let blocks = blocks(&path, &header, end)?;
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
            write_zeros(&self.file, self.zeroed, zeroed)?;
            self.file.sync_data()?;
            self.zeroed = zeroed;
        }
        match &mut self.blocks {
            Some(blocks) => blocks.append(self.end, bytes)?,
            None => self.file.write_all_at(bytes, self.end)?,
        }
        self.file.sync_data()?;
        self.end = end;
        Ok(())
    }
}

/// To write past the page cache with, where that can be done.
fn blocks(path: &Path, header: &Header, end: u64) -> io::Result<Option<BlockWriter>> {
    match (header.step as usize).is_multiple_of(BLOCK) {
        true => BlockWriter::open(path, end),
        false => Ok(None),
    }
}

/// Real zeros, not `fallocate`: with unwritten extents every `fdatasync` would have to commit metadata.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let length = (to - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..length as usize], at)?;
        at += length;
    }
    Ok(())
}
