//! Writing past the page cache, in whole blocks.
//!
//! That saves each flush a copy, writeback work and a wake-up, and an error comes back from the very write that failed.
//! It writes what the page cache would: whole blocks of 4 KiB, a partly filled one again and again until it is full. So
//! a disk with blocks of that size never has to read one to change a part of it.

use std::io;

use crate::disk::File;

/// Files are written in multiples of this, at multiples of this, from memory at a multiple of this.
pub(crate) const BLOCK: usize = 4 << 10;
/// The most that one write takes.
const ROOM: usize = 256 << 10;

/// The end of a file that is zeroed ahead by whole blocks.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    file: Box<dyn File>,
    /// The partly filled block, and room.
    memory: Vec<u8>,
    /// Offset in `memory` of the first multiple of a block.
    aligned: usize,
}

impl BlockWriter {
    /// Continues at `end`, which is not 0, of `file`, opened in [`Mode::Direct`](crate::disk::Mode::Direct); `None` if that
    /// file system cannot read so.
    pub(crate) fn new(file: Box<dyn File>, end: u64) -> Option<Self> {
        let memory = vec![0; ROOM + BLOCK];
        let aligned = memory.as_ptr().align_offset(BLOCK);
        let mut writer = Self { file, memory, aligned };
        let started = &mut writer.memory[aligned..aligned + BLOCK];
        // If the last block is full, this only shows that the file system can.
        let last = end.saturating_sub(1);
        writer.file.read_at(started, last - last % BLOCK as u64).ok()?;
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
            self.file.write_at(&memory[..whole], at)?;
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
    use crate::disk::{Disk, Mode, System};

    #[test]
    fn appended_bytes_are_followed_by_zeros_to_the_end_of_the_block() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        let head = [9; 700];
        let mut expected = head.to_vec();
        std::fs::write(&path, head).unwrap();
        let length = 4 * ROOM;
        std::fs::File::options().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
        let file = System.open(&path, Mode::Direct).ok();
        let Some(mut writer) = file.and_then(|file| BlockWriter::new(file, head.len() as u64)) else {
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
