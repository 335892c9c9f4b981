//! A sector: 512 bytes that check themselves.
//!
//! ```text
//! 0    4            12       16       20     22                       511 512
//! | crc | flush u64  | index  | count  | used | body: `used` of 489 B … | A5 |
//! ```
//! The checksum covers every byte behind it and starts from the log's own seed, so that a block which another
//! log left on the disk never passes for one of this.

/// The unit a disk writes whole or not at all.
pub(crate) const SECTOR: usize = 512;
/// Bytes before the body.
pub(crate) const HEAD: usize = 22;
/// Bytes of the record stream that one sector carries.
pub(crate) const BODY: usize = SECTOR - HEAD - 1;
/// The last byte of every written sector. Four bits of it are set: no single flipped bit makes it the zero
/// of a sector that was never written.
pub(crate) const END_MARK: u8 = 0xA5;

/// The bytes of one sector.
pub(crate) type Sector = [u8; SECTOR];

/// Where a sector belongs: which flush, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the flush; rises from flush to flush through the whole log.
    pub(crate) flush: u64,
    /// Position within the flush, from 0.
    pub(crate) index: u32,
    /// Number of sectors of the flush.
    pub(crate) count: u32,
}

/// The state of a sector that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// As it was written; with the number of bytes used of its body.
    Whole(Position, usize),
    /// Never written to its end.
    Unwritten,
    /// Neither.
    Damaged,
}

/// Judges one sector.
pub(crate) fn judge(sector: &Sector, seed: u32) -> Judged {
    if sector[SECTOR - 1] == 0 {
        return Judged::Unwritten;
    }
    if !is_sealed(sector, seed) {
        return Judged::Damaged;
    }
    let place = Position { flush: u64_at(sector, 4), index: u32_at(sector, 12), count: u32_at(sector, 16) };
    let used = usize::from(u16_at(sector, 20));
    let is_last = place.index.checked_add(1) == Some(place.count);
    // Only the last sector of a flush may have room left.
    let fits = if is_last { (1..=BODY).contains(&used) } else { used == BODY };
    if place.index < place.count && fits { Judged::Whole(place, used) } else { Judged::Damaged }
}

/// Completes a sector whose body is filled.
pub(crate) fn seal_as(sector: &mut Sector, place: Position, used: usize, seed: u32) {
    debug_assert!(used <= BODY);
    sector[4..12].copy_from_slice(&place.flush.to_le_bytes());
    sector[12..16].copy_from_slice(&place.index.to_le_bytes());
    sector[16..20].copy_from_slice(&place.count.to_le_bytes());
    sector[20..22].copy_from_slice(&(used as u16).to_le_bytes());
    seal(sector, seed);
}

/// Sets the end mark and the checksum, which come last.
pub(crate) fn seal(sector: &mut Sector, seed: u32) {
    sector[SECTOR - 1] = END_MARK;
    let crc = crc32c::crc32c_append(seed, &sector[4..]);
    sector[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Whether end mark and checksum are right.
pub(crate) fn is_sealed(sector: &Sector, seed: u32) -> bool {
    sector[SECTOR - 1] == END_MARK && u32_at(sector, 0) == crc32c::crc32c_append(seed, &sector[4..])
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(seed: u32) -> Sector {
        let mut sector = [0; SECTOR];
        sector[HEAD..HEAD + 3].copy_from_slice(b"abc");
        seal_as(&mut sector, Position { flush: 7, index: 2, count: 3 }, 3, seed);
        sector
    }

    #[test]
    fn a_written_sector_is_whole_only_under_the_seed_of_its_log() {
        let sector = written(9);
        assert_eq!(judge(&sector, 9), Judged::Whole(Position { flush: 7, index: 2, count: 3 }, 3));
        assert_eq!(judge(&sector, 8), Judged::Damaged);
    }

    #[test]
    fn any_flipped_bit_of_a_written_sector_is_damage_and_never_unwritten() {
        let sector = written(9);
        for bit in 0..SECTOR * 8 {
            let mut flipped = sector;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(judge(&flipped, 9), Judged::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn a_place_that_no_flush_has_is_damage() {
        for (index, count, used) in [(3, 3, 1), (0, 0, 1), (0, 1, 0), (0, 2, BODY - 1), (u32::MAX, 0, BODY)] {
            let mut sector = [0; SECTOR];
            seal_as(&mut sector, Position { flush: 7, index, count }, used, 9);
            assert_eq!(judge(&sector, 9), Judged::Damaged, "part {index} of {count}, {used} bytes used");
        }
    }

    #[test]
    fn a_sector_cut_short_by_zeros_is_unwritten() {
        let sector = written(9);
        for written in 0..SECTOR {
            let mut cut = sector;
            cut[written..].fill(0);
            assert_eq!(judge(&cut, 9), Judged::Unwritten, "{written} bytes written");
        }
    }
}
