//! Writing past the page cache, in whole blocks.
//!
//! It spares the copy, the work of writeback and a wake-up of each flush, and an error comes back from the very write
//! that failed. What is written is what the page cache would write: whole blocks of 4 KiB, a started one again and
//! again until it is full. So a disk with blocks of that size never has to read one to change a part of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::lacks_descriptors;

/// Files are written in multiples of this, at multiples of this, from memory at a multiple of this.
pub(crate) const BLOCK: usize = 4 << 10;
/// No more is written at once.
const ROOM: usize = 256 << 10;

/// The end of a file that is zeroed ahead by whole blocks.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    file: File,
    /// The block that is filled in part, and room.
    memory: Vec<u8>,
    /// Where in it the multiple of a block is that everything starts from.
    aligned: usize,
}

impl BlockWriter {
    /// Goes on at `end`, which is not 0, of the file at `path`; `None` where the file system cannot write past the
    /// page cache. It is an error only if there is no descriptor for it.
    pub(crate) fn open(path: &Path, end: u64) -> io::Result<Option<Self>> {
        let Ok(flags) = i32::try_from(OFlags::DIRECT.bits()) else { return Ok(None) };
        match File::options().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => Ok(Self::of(file, end)),
            Err(error) if lacks_descriptors(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn of(file: File, end: u64) -> Option<Self> {
        let memory = vec![0; ROOM + BLOCK];
        let aligned = memory.as_ptr().align_offset(BLOCK);
        let mut writer = Self { file, memory, aligned };
        let started = &mut writer.memory[aligned..aligned + BLOCK];
        // Where the last block is full this tells only that the file system can.
        let last = end.saturating_sub(1);
        writer.file.read_exact_at(started, last - last % BLOCK as u64).ok()?;
        Some(writer)
    }

    /// Writes `bytes` at `end`, where the last ones ended, and zeros up to the end of the block.
    pub(crate) fn append(&mut self, end: u64, mut bytes: &[u8]) -> io::Result<()> {
        let memory = &mut self.memory[self.aligned..self.aligned + ROOM];
        let mut held = (end % BLOCK as u64) as usize;
        let mut at = end - held as u64;
        while !bytes.is_empty() {
            let taken = bytes.len().min(ROOM - held);
            let filled = held + taken;
            let whole = filled.next_multiple_of(BLOCK);
            memory[held..filled].copy_from_slice(&bytes[..taken]);
            memory[filled..whole].fill(0);
            self.file.write_all_at(&memory[..whole], at)?;
            bytes = &bytes[taken..];
            held = filled % BLOCK;
            at += (filled - held) as u64;
            memory.copy_within(filled - held..filled, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_stands_in_the_file_with_zeros_behind_it() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        let head = [9; 700];
        let mut expected = head.to_vec();
        std::fs::write(&path, head).unwrap();
        let length = 4 * ROOM;
        File::options().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
        let Some(mut writer) = BlockWriter::open(&path, head.len() as u64).unwrap() else {
            return eprintln!("skipped: this file system cannot write past the page cache");
        };
        for (fill, size) in (1..).zip([1, 3_395, 1, 4_095, 8_192, ROOM - 1, 2, ROOM, 2 * ROOM - 17_000]) {
            let bytes = vec![fill; size];
            writer.append(expected.len() as u64, &bytes).unwrap();
            expected.extend(bytes);
            let mut read = std::fs::read(&path).unwrap();
            assert!(read.split_off(expected.len()).iter().all(|byte| *byte == 0));
            assert!(read == expected, "after {size} bytes");
        }
    }
}
