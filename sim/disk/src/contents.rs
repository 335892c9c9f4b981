//! The contents of a file, and what of it a power cut may lose.

use std::io::{self, ErrorKind};

use crate::Part;

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub(crate) struct Contents {
    /// Its beginning: what follows, up to the length, is zeros. Logs fill their files with zeros by the megabyte.
    bytes: Vec<u8>,
    pub(crate) length: usize,
    /// Since the last sync, in order.
    unsynced: Vec<Write>,
}

/// A write or, if `length` is 0, that the file was emptied.
#[derive(Clone)]
struct Write {
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
    pub(crate) fn write(&mut self, at: usize, new: &[u8]) {
        if new.is_empty() {
            return;
        }
        let (old_length, length) = (self.length, new.len());
        let known = self.bytes.len();
        let old = self.bytes[at.min(known)..(at + length).min(known)].to_vec();
        let new = without_zeros(new);
        self.put(at, new, length);
        self.unsynced.push(Write { at, old, old_length, new: new.to_vec(), length });
    }

    pub(crate) fn empty(&mut self) {
        if self.length == 0 {
            return;
        }
        let old = std::mem::take(&mut self.bytes);
        let old_length = std::mem::take(&mut self.length);
        self.unsynced.push(Write { at: 0, old, old_length, new: Vec::new(), length: 0 });
    }

    pub(crate) fn sync(&mut self) {
        self.unsynced.clear();
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

    pub(crate) fn read(&self, into: &mut [u8], at: usize) -> io::Result<()> {
        if at + into.len() > self.length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let known = self.bytes.get(at..).unwrap_or_default();
        let count = known.len().min(into.len());
        into[..count].copy_from_slice(&known[..count]);
        into[count..].fill(0);
        Ok(())
    }

    /// Returns whether a write was torn.
    pub(crate) fn cut_power(&mut self, keeps: &mut dyn FnMut(Part) -> bool) -> bool {
        let unsynced = std::mem::take(&mut self.unsynced);
        for Write { at, old, old_length, length, .. } in unsynced.iter().rev() {
            self.bytes.truncate(*old_length);
            self.length = *old_length;
            self.put(*at, old, old_length.saturating_sub(*at).min(*length).max(old.len()));
        }
        let mut is_torn = false;
        for Write { at, new, length, .. } in unsynced {
            if length == 0 {
                if keeps(Part::Sector) {
                    (self.bytes, self.length) = (Vec::new(), 0);
                }
                continue;
            }
            if !keeps(Part::Write) {
                continue;
            }
            let (mut done, mut kept, mut lost) = (0, false, false);
            while done < length {
                let end = length.min(((at + done) / SECTOR + 1) * SECTOR - at);
                let is_kept = keeps(Part::Sector);
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
