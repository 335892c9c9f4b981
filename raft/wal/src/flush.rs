//! The buffer in which one flush is laid out in sectors.

use crate::frame;
use crate::sector::{self, BODY, HEAD, Position, SECTOR, Sector};

/// A flush being filled, then sealed and written. Reused from flush to flush.
#[derive(Default)]
pub(crate) struct FlushBuffer {
    sectors: Vec<Sector>,
    /// Bytes used in the last sector.
    used: usize,
}

impl FlushBuffer {
    /// Appends one frame.
    pub(crate) fn push(&mut self, kind: u16, sequence: u64, payload: &[u8]) {
        self.extend(&frame::head(kind, sequence, payload.len()));
        self.extend(payload);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Bytes it takes on disk.
    pub(crate) fn len(&self) -> usize {
        self.sectors.len() * SECTOR
    }

    /// Bytes it would take on disk with one more frame.
    pub(crate) fn len_with(&self, payload: usize) -> usize {
        let room = if self.is_empty() { 0 } else { BODY - self.used };
        let more = (frame::FRAME_HEAD + payload).saturating_sub(room).div_ceil(BODY);
        self.len() + more * SECTOR
    }

    /// Numbers and checksums every sector, and returns the bytes to write.
    pub(crate) fn seal(&mut self, flush: u64, seed: u32) -> &[u8] {
        let count = u32::try_from(self.sectors.len()).expect("a flush is far below 2^32 sectors");
        for (index, sector) in (0..).zip(&mut self.sectors) {
            let used = if index + 1 == count { self.used } else { BODY };
            sector::seal_as(sector, Position { flush, index, count }, used, seed);
        }
        self.sectors.as_flattened()
    }

    /// Empties it, and frees the memory of an unusually large flush.
    pub(crate) fn clear(&mut self, keep_bytes: usize) {
        self.sectors.clear();
        self.used = 0;
        self.sectors.shrink_to(keep_bytes / SECTOR + 1);
    }

    fn extend(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.sectors.is_empty() || self.used == BODY {
                self.sectors.push([0; SECTOR]);
                self.used = 0;
            }
            let last = self.sectors.len() - 1;
            let taken = bytes.len().min(BODY - self.used);
            let at = HEAD + self.used;
            self.sectors[last][at..at + taken].copy_from_slice(&bytes[..taken]);
            self.used += taken;
            bytes = &bytes[taken..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn len_with_predicts_the_size() {
        let mut buffer = FlushBuffer::default();
        for payload in (0..1_500).step_by(7).chain([475, 475, 475, 461]) {
            let expected = buffer.len_with(payload);
            buffer.push(1, 1, &vec![0; payload]);
            assert_eq!(buffer.len(), expected);
        }
    }
}
