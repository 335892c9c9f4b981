//! The first sector of a segment.
//!
//! `crc u32 | magic 8 B | version u16 | group u32 | log u64 | first flush u64 | first sequence u64 |
//! step u32 | zeros | A5`. Checksum and end mark are where every sector has them, in every version, to distinguish
//! an unknown version from a flipped bit.

use crate::sector::{self, SECTOR, Sector, u16_at, u32_at, u64_at};

/// The format this program writes and reads.
pub(crate) const VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"ringfwal";
/// Room for several logs in one process; there is one so far.
const GROUP: u32 = 0;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Random number of the log, to distinguish its segments from those of another.
    pub(crate) log: u64,
    /// No flush of the segment has a number below this.
    pub(crate) first_flush: u64,
    /// Sequence of its first record; also its name.
    pub(crate) first_sequence: u64,
    /// The file grows by this many bytes, zeroed and synced before use: it can never be shorter than its contents
    /// rounded up to the step.
    pub(crate) step: u32,
}

/// Why a header is refused.
pub(crate) enum Refused {
    Damaged(String),
    Version(u16),
}

impl Header {
    pub(crate) fn encode(&self) -> Sector {
        let mut sector = [0; SECTOR];
        sector[4..12].copy_from_slice(MAGIC);
        sector[12..14].copy_from_slice(&VERSION.to_le_bytes());
        sector[14..18].copy_from_slice(&GROUP.to_le_bytes());
        sector[18..26].copy_from_slice(&self.log.to_le_bytes());
        sector[26..34].copy_from_slice(&self.first_flush.to_le_bytes());
        sector[34..42].copy_from_slice(&self.first_sequence.to_le_bytes());
        sector[42..46].copy_from_slice(&self.step.to_le_bytes());
        sector::seal(&mut sector, 0);
        sector
    }

    pub(crate) fn decode(sector: &Sector) -> Result<Self, Refused> {
        let damaged = |what: &str| Err(Refused::Damaged(what.to_owned()));
        if !sector::is_sealed(sector, 0) {
            return damaged("the segment header does not match its checksum");
        }
        if &sector[4..12] != MAGIC {
            return damaged("this is not a segment of a ringfence log");
        }
        let version = u16_at(sector, 12);
        if version != VERSION {
            return Err(Refused::Version(version));
        }
        let group = u32_at(sector, 14);
        if group != GROUP {
            return damaged(&format!("the segment belongs to group {group}, expected {GROUP}"));
        }
        let header = Self {
            log: u64_at(sector, 18),
            first_flush: u64_at(sector, 26),
            first_sequence: u64_at(sector, 34),
            step: u32_at(sector, 42),
        };
        let is_step_possible = header.step > 0 && (header.step as usize).is_multiple_of(SECTOR);
        if header.first_flush == 0 || header.first_sequence == 0 || !is_step_possible {
            return damaged("the segment header holds numbers that no log has");
        }
        Ok(header)
    }

    /// The seed of the checksums of the log's sectors.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.log.to_le_bytes())
    }

    /// The least length of a file that was used up to `end`.
    pub(crate) fn least_length(&self, end: u64) -> u64 {
        end.next_multiple_of(u64::from(self.step))
    }
}
