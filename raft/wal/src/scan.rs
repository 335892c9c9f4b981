//! Reading one segment: its flushes, and where they end.
//!
//! This distinguishes a torn tail from damage, by the rule at the head of the crate.

use crate::frame::{self, Frame};
use crate::header::Header;
use crate::sector::{HEAD, Judged, Position, SECTOR, Sector, judge};

/// Where the flushes of a segment end, and what is behind them. Positions are in sectors.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Start of the last whole flush; `end` if there is none.
    pub(crate) last_flush: usize,
    /// End of the last whole flush.
    pub(crate) end: usize,
    /// The flush behind `end` that was cut short, if any sector of it is whole.
    pub(crate) torn: Option<Position>,
    /// End of the remains behind `end`: from here on the file is zeros.
    pub(crate) remains: usize,
}

/// What is wrong: offset in bytes, and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage(pub(crate) u64, pub(crate) String);

/// Scans the flushes of a segment. `sectors` is the whole file, `above` the number of the last flush before it.
/// Calls `visit` with each frame of a whole flush, and the position of its first sector. Returns the number of the last
/// flush, whole or torn, too.
pub(crate) fn scan(
    sectors: &[Sector],
    header: &Header,
    above: u64,
    mut visit: impl FnMut(usize, Frame<'_>) -> Result<(), Damage>,
) -> Result<(Extent, u64), Damage> {
    let walk = Walk { sectors, seed: header.seed() };
    let (mut flush, mut last_flush, mut end) = (above, 1, 1);
    let mut stream = Vec::new();
    let torn = loop {
        let Some(place) = walk.flush_at(end, flush)? else { break None };
        flush = place.flush;
        if !walk.is_whole(end, place)? {
            break Some(place);
        }
        last_flush = end;
        end += place.count as usize;
        walk.gather(last_flush, end, &mut stream);
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            match frame::split(&mut rest) {
                Some(frame) => visit(last_flush, frame)?,
                None => return damage(last_flush, "the last record of this flush is cut short".to_owned()),
            }
        }
    };
    Ok((Extent { last_flush, end, torn, remains: walk.remains(end) }, flush))
}

struct Walk<'a> {
    sectors: &'a [Sector],
    seed: u32,
}

impl Walk<'_> {
    /// The flush that starts at `start`, whose number must be above `above`, by its first written sector.
    fn flush_at(&self, start: usize, above: u64) -> Result<Option<Position>, Damage> {
        let Some((found_at, place)) = self.first_whole(start)? else { return Ok(None) };
        let Position { flush, index, .. } = place;
        if flush <= above {
            return damage(found_at, format!("flush {flush} stands here, expected one above {above}"));
        }
        if index as usize != found_at - start {
            let (next, byte) = (above + 1, start * SECTOR);
            let text = format!(
                "part {index} of flush {flush} stands here, expected flush {next} or later to start at byte {byte}"
            );
            return damage(found_at, text);
        }
        Ok(Some(place))
    }

    /// Whether the flush at `start` has all its sectors, of which `first` is the first that was written. If not, nothing may
    /// follow it.
    fn is_whole(&self, start: usize, first: Position) -> Result<bool, Damage> {
        // All sectors before that are unwritten.
        let mut is_whole = first.index == 0;
        for index in first.index + 1..first.count {
            is_whole &= self.belongs(start, Position { index, ..first })?;
        }
        if is_whole {
            return Ok(true);
        }
        match self.first_whole(start + first.count as usize)? {
            None => Ok(false),
            Some((at, later)) => {
                let (flush, later, byte) = (first.flush, later.flush, at * SECTOR);
                damage(
                    start,
                    format!("flush {flush} is incomplete, but flush {later} follows at byte {byte}"),
                )
            }
        }
    }

    /// Whether the sector at its place of the flush that begins at `start` is whole; `false` if unwritten.
    fn belongs(&self, start: usize, expected: Position) -> Result<bool, Damage> {
        let at = start + expected.index as usize;
        match self.judge(at)? {
            None => Ok(false),
            Some(found) if found == expected => Ok(true),
            Some(found) => damage(
                at,
                format!(
                    "part {} of {} of flush {} stands here, expected part {} of {} of flush {}",
                    found.index, found.count, found.flush, expected.index, expected.count, expected.flush
                ),
            ),
        }
    }

    /// The first sector from `from` on that is not unwritten.
    fn first_whole(&self, from: usize) -> Result<Option<(usize, Position)>, Damage> {
        for at in from..self.sectors.len() {
            if let Some(place) = self.judge(at)? {
                return Ok(Some((at, place)));
            }
        }
        Ok(None)
    }

    /// `None`: unwritten, or behind the end of the file.
    fn judge(&self, at: usize) -> Result<Option<Position>, Damage> {
        match self.sectors.get(at).map(|sector| judge(sector, self.seed)) {
            None | Some(Judged::Unwritten) => Ok(None),
            Some(Judged::Whole(place, _)) => Ok(Some(place)),
            Some(Judged::Damaged) => {
                damage(at, "this sector was written, but does not match its checksum".to_owned())
            }
        }
    }

    /// End of the last sector at or behind `from` that is not all zeros.
    fn remains(&self, from: usize) -> usize {
        let behind = self.sectors.get(from..).unwrap_or_default();
        behind.iter().rposition(|sector| *sector != [0; SECTOR]).map_or(from, |last| from + last + 1)
    }

    /// Joins the bodies of a whole flush.
    fn gather(&self, start: usize, end: usize, stream: &mut Vec<u8>) {
        stream.clear();
        for sector in &self.sectors[start..end] {
            let used = usize::from(crate::sector::u16_at(sector, 20));
            stream.extend_from_slice(&sector[HEAD..HEAD + used]);
        }
    }
}

fn damage<T>(at: usize, what: String) -> Result<T, Damage> {
    Err(Damage((at * SECTOR) as u64, what))
}
