//! The contents of a file, and what of it a power cut may lose.

use std::io::{self, ErrorKind};

use fastrand::Rng;

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub(super) struct Contents {
    /// Its beginning: what follows, up to the length, is zeros. Logs fill their files with zeros by the megabyte.
    bytes: Vec<u8>,
    pub(super) length: usize,
    /// Since the last sync, in order.
    pub(super) unsynced: Vec<Write>,
}

#[derive(Clone)]
pub(super) struct Write {
    at: usize,
    /// What was there before; zeros may follow.
    old: Vec<u8>,
    /// The length of the file before.
    old_length: usize,
    /// What was written; zeros follow, up to the length.
    new: Vec<u8>,
    length: usize,
}

impl Contents {
    pub(super) fn write(&mut self, at: usize, new: &[u8]) {
        let (old_length, length) = (self.length, new.len());
        let known = self.bytes.len();
        let old = self.bytes[at.min(known)..(at + length).min(known)].to_vec();
        let new = without_zeros(new);
        self.put(at, new, length);
        self.unsynced.push(Write { at, old, old_length, new: new.to_vec(), length });
    }

    pub(super) fn truncate(&mut self) {
        let old = std::mem::take(&mut self.bytes);
        let old_length = std::mem::take(&mut self.length);
        self.unsynced.push(Write { at: 0, old, old_length, new: Vec::new(), length: 0 });
    }

    /// Puts bytes, and zeros after them up to `length`.
    fn put(&mut self, at: usize, bytes: &[u8], length: usize) {
        self.length = self.length.max(at + length);
        let end = at + bytes.len();
        if !bytes.is_empty() {
            self.bytes.resize(self.bytes.len().max(end), 0);
            self.bytes[at..end].copy_from_slice(bytes);
        }
        let known = self.bytes.len();
        self.bytes[end.min(known)..(at + length).min(known)].fill(0);
    }

    pub(super) fn read(&self, into: &mut [u8], at: usize) -> io::Result<()> {
        if at + into.len() > self.length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let known = self.bytes.get(at..).unwrap_or_default();
        let count = known.len().min(into.len());
        into[..count].copy_from_slice(&known[..count]);
        into[count..].fill(0);
        Ok(())
    }

    /// Each sector of an unsynced write is kept in `odds` of 100 cases. Returns whether a write was torn.
    pub(super) fn cut_power(&mut self, rng: &mut Rng, odds: u32) -> bool {
        let unsynced = std::mem::take(&mut self.unsynced);
        for Write { at, old, old_length, length, .. } in unsynced.iter().rev() {
            self.bytes.truncate(*old_length);
            self.length = *old_length;
            self.put(*at, old, old_length.saturating_sub(*at).min(*length).max(old.len()));
        }
        let mut is_torn = false;
        for Write { at, new, length, .. } in unsynced {
            let (mut done, mut kept, mut lost) = (0, false, false);
            while done < length {
                let end = length.min(((at + done) / SECTOR + 1) * SECTOR - at);
                let is_kept = rng.u32(0..100) < odds;
                if is_kept {
                    self.put(at + done, &new[done.min(new.len())..end.min(new.len())], end - done);
                }
                if done < new.len() {
                    (kept, lost) = (kept | is_kept, lost | !is_kept);
                }
                done = end;
            }
            is_torn |= kept && lost;
        }
        is_torn
    }
}

/// All but the zero sectors at the end.
fn without_zeros(bytes: &[u8]) -> &[u8] {
    let zeros: usize = bytes
        .rchunks(SECTOR)
        .take_while(|chunk| **chunk == [0; SECTOR][..chunk.len()])
        .map(<[u8]>::len)
        .sum();
    &bytes[..bytes.len() - zeros]
}
