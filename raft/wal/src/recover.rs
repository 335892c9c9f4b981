//! Opening: reading all segments, refusing what cannot be, cutting a torn tail.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::Record;
use crate::error::OpenError;
use crate::folder;
use crate::frame::{Frame, NOTE_FORGOTTEN, NOTE_ROLLED};
use crate::header::{Header, Refused, VERSION};
use crate::scan::{Damage, Extent, scan};
use crate::sector::{SECTOR, Sector};
use crate::segment::Segment;

/// A log that was read and may be written to.
pub(crate) struct Recovered {
    pub(crate) records: Vec<(u64, Record)>,
    /// First sequences of all segments, the one being written included.
    pub(crate) segments: Vec<u64>,
    pub(crate) active: Segment,
    /// The folder itself, open to be synced.
    pub(crate) folder: File,
    pub(crate) next_sequence: u64,
    pub(crate) next_flush: u64,
    /// Bytes of a torn tail that were cut off.
    pub(crate) cut: u64,
}

/// Opens the log in a folder, or makes a new one with segments that grow by `step`.
pub(crate) fn recover(dir: &Path, step: u32) -> Result<Recovered, OpenError> {
    folder::create(dir)?;
    let mut names = folder::list(dir)?;
    folder::remove_unfinished(dir)?;
    let Some((reader, tail, unused)) = read_all(dir, &names, File::options().read(true).write(true))? else {
        return start(dir, step);
    };
    if let Some(path) = unused {
        names.pop();
        fs::remove_file(&path).map_err(OpenError::io("remove", &path))?;
    }
    folder::sync(dir).map_err(OpenError::io("sync", dir))?;
    let cut = tail.report_torn();
    let Tail { path, file, header, length, extent, last_flush, .. } = tail;
    let end = (extent.end * SECTOR) as u64;
    let active = Segment::resume(path.clone(), file, header, last_flush.as_flattened(), end, length)
        .map_err(OpenError::io("write", &path))?;
    Ok(Recovered {
        records: reader.records,
        segments: names,
        active,
        folder: folder::open(dir)?,
        next_sequence: reader.next_sequence,
        next_flush: reader.flush + 1,
        cut,
    })
}

/// The records of the log in a folder, with their sequences. Nothing is changed: what opening would cut off or
/// remove is passed over. Nobody may be writing to the log.
///
/// # Errors
/// As of [`Wal::open`](crate::Wal::open); also if there is no such folder.
pub fn read(dir: &Path) -> Result<Vec<(u64, Record)>, OpenError> {
    let names = folder::list(dir)?;
    Ok(read_all(dir, &names, File::options().read(true))?
        .map_or_else(Vec::new, |(reader, ..)| reader.records))
}

/// Reads these segments. Gives what was read, the last of them, and the path of one behind that, if there is one
/// that was never used; `None` if there are no segments.
fn read_all<'a>(
    dir: &'a Path,
    names: &[u64],
    how: &fs::OpenOptions,
) -> Result<Option<(Reader<'a>, Tail, Option<PathBuf>)>, OpenError> {
    let Some(&first) = names.first() else { return Ok(None) };
    let mut reader = Reader::new(dir, first);
    let mut tail = None;
    for (position, &first) in names.iter().enumerate() {
        tail = Some(reader.segment(first, position + 1 == names.len(), tail.take(), how)?);
    }
    let mut tail = tail.expect("there is at least one segment");
    let mut unused = None;
    if let Some(before) = tail.unused_after.take() {
        unused = Some(tail.path);
        tail = *before;
    }
    reader.finish(&tail)?;
    Ok(Some((reader, tail, unused)))
}

fn start(dir: &Path, step: u32) -> Result<Recovered, OpenError> {
    let header = Header { log: random(), first_flush: 1, first_sequence: 1, step };
    let folder = folder::open(dir)?;
    let active = Segment::create(dir, &folder, header).map_err(OpenError::io("make a segment in", dir))?;
    let (records, segments) = (Vec::new(), vec![1]);
    Ok(Recovered { records, segments, active, folder, next_sequence: 1, next_flush: 1, cut: 0 })
}

/// The keys of the standard library's hash maps are random, and enough to tell one log from another.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// What has been read so far.
struct Reader<'a> {
    dir: &'a Path,
    log: Option<u64>,
    records: Vec<(u64, Record)>,
    next_sequence: u64,
    /// Number of the last flush, whole or torn.
    flush: u64,
    /// The segments before this sequence may be gone.
    forgotten: u64,
    sectors: Vec<Sector>,
}

/// The last segment that was read.
struct Tail {
    path: PathBuf,
    file: File,
    header: Header,
    length: u64,
    extent: Extent,
    last_flush: Vec<Sector>,
    /// It ends with the note that the log goes on in another.
    is_rolled: bool,
    /// The one before, if this one is to be taken back: it is the last and holds nothing, and the one before
    /// does not say that the log goes on. The program ended between making this one and saying so.
    unused_after: Option<Box<Tail>>,
}

impl<'a> Reader<'a> {
    fn new(dir: &'a Path, first: u64) -> Self {
        Self {
            dir,
            log: None,
            records: Vec::new(),
            next_sequence: first,
            flush: 0,
            forgotten: 1,
            sectors: Vec::new(),
        }
    }

    /// Reads the segment that starts with sequence `first` and follows `before`.
    fn segment(
        &mut self,
        first: u64,
        is_last: bool,
        before: Option<Tail>,
        how: &fs::OpenOptions,
    ) -> Result<Tail, OpenError> {
        let path = folder::segment_path(self.dir, first);
        let damaged = |offset, what| OpenError::Damaged { file: path.clone(), offset, what };
        let file = how.open(&path).map_err(OpenError::io("open", &path))?;
        let length = self.load(&file).map_err(OpenError::io("read", &path))?;
        let header = self.header(first, before.is_none()).map_err(|refused| match refused {
            Refused::Damaged(what) => damaged(0, what),
            Refused::Version(found) => {
                OpenError::UnknownVersion { file: path.clone(), found, known: VERSION }
            }
        })?;
        let above = self.flush.max(header.first_flush - 1);
        let sectors = std::mem::take(&mut self.sectors);
        let mut is_rolled = false;
        let scanned = scan(&sectors, &header, above, |at, frame| {
            if is_rolled {
                return Err(Damage(
                    (at * SECTOR) as u64,
                    "a flush follows the end of the segment".to_owned(),
                ));
            }
            is_rolled = frame.kind == NOTE_ROLLED;
            self.take(at, &frame)
        });
        let (extent, flush) = scanned.map_err(|Damage(offset, what)| damaged(offset, what))?;
        check_length(&header, &extent, length).map_err(|what| damaged(length, what))?;
        if let Some(torn) = extent.torn.filter(|_| !is_last || is_rolled) {
            let what = format!("flush {} is incomplete, but the log goes on after it", torn.flush);
            return Err(damaged((extent.end * SECTOR) as u64, what));
        }
        // What was read may stand in the page cache only.
        file.sync_all().map_err(OpenError::io("sync", &path))?;
        let last_flush = sectors[extent.last_flush..extent.end].to_vec();
        self.flush = flush;
        self.sectors = sectors;
        let is_unused = is_last && extent.end == 1 && extent.torn.is_none();
        let unused_after = before.filter(|before| is_unused && !before.is_rolled).map(Box::new);
        Ok(Tail { path, file, header, length, extent, last_flush, is_rolled, unused_after })
    }

    /// Reads a file into whole sectors, the last filled up with zeros.
    fn load(&mut self, mut file: &File) -> std::io::Result<u64> {
        let length = file.metadata()?.len();
        self.sectors.resize((length as usize).div_ceil(SECTOR), [0; SECTOR]);
        if let Some(last) = self.sectors.last_mut() {
            *last = [0; SECTOR];
        }
        file.read_exact(&mut self.sectors.as_flattened_mut()[..length as usize])?;
        Ok(length)
    }

    /// Checks the header against the name and against what came before.
    fn header(&mut self, first: u64, is_first: bool) -> Result<Header, Refused> {
        let header = Header::decode(self.sectors.first().unwrap_or(&[0; SECTOR]))?;
        let refuse = |what: String| Err(Refused::Damaged(what));
        if header.first_sequence != first {
            return refuse(format!(
                "the segment starts with record {}, its name says {first}",
                header.first_sequence
            ));
        }
        if first != self.next_sequence {
            return refuse(format!(
                "the segment starts with record {first}, expected {}: a segment is missing or cut short",
                self.next_sequence
            ));
        }
        if *self.log.get_or_insert(header.log) != header.log {
            return refuse("the segment belongs to another log than the one before".to_owned());
        }
        if !is_first && header.first_flush <= self.flush {
            return refuse(format!(
                "the segment starts with flush {}, expected one above {}",
                header.first_flush, self.flush
            ));
        }
        Ok(header)
    }

    /// Takes in one record or note.
    fn take(&mut self, at: usize, frame: &Frame<'_>) -> Result<(), Damage> {
        let refuse = |what| Err(Damage((at * SECTOR) as u64, what));
        if frame.sequence != self.next_sequence {
            return refuse(format!(
                "this flush holds record {}, expected {}",
                frame.sequence, self.next_sequence
            ));
        }
        match (u8::try_from(frame.kind), frame.kind) {
            (Ok(kind), _) => {
                // A copy, so that one small record does not keep a whole segment in memory.
                let payload = Bytes::copy_from_slice(frame.payload);
                self.records.push((frame.sequence, Record { kind, payload }));
                self.next_sequence += 1;
            }
            (_, NOTE_ROLLED) => {}
            (_, NOTE_FORGOTTEN) => match frame.payload.try_into() {
                Ok(bytes) => self.forgotten = u64::from_le_bytes(bytes),
                Err(_) => return refuse("this flush holds a malformed note".to_owned()),
            },
            (_, kind) => return refuse(format!("this flush holds a record of unknown kind {kind}")),
        }
        Ok(())
    }

    /// What can only be said once all was read.
    fn finish(&self, tail: &Tail) -> Result<(), OpenError> {
        let first = self.records.first().map_or(self.next_sequence, |(sequence, _)| *sequence);
        if first > self.forgotten {
            return Err(OpenError::Damaged {
                file: folder::segment_path(self.dir, first),
                offset: 0,
                what: format!(
                    "the log starts with record {first}, but only those before {} were given up: the segments before \
                     this one are missing",
                    self.forgotten
                ),
            });
        }
        if tail.is_rolled {
            return Err(OpenError::Damaged {
                file: tail.path.clone(),
                offset: (tail.extent.last_flush * SECTOR) as u64,
                what: format!(
                    "the log goes on in {}, which is missing",
                    folder::segment_path(self.dir, self.next_sequence).display()
                ),
            });
        }
        Ok(())
    }
}

impl Tail {
    /// Bytes behind the end of the log that are wiped now.
    fn report_torn(&self) -> u64 {
        let Extent { end, remains, torn, .. } = &self.extent;
        let bytes = ((remains - end) * SECTOR) as u64;
        if bytes > 0 {
            tracing::warn!(
                file = %self.path.display(),
                offset = end * SECTOR,
                bytes,
                flush = torn.map(|torn| torn.flush),
                "cut a torn tail off the log: a flush that was never acknowledged"
            );
        }
        bytes
    }
}

/// A file is zeroed and synced ahead of its use, so no crash leaves it shorter than that.
fn check_length(header: &Header, extent: &Extent, length: u64) -> Result<(), String> {
    let torn_end = extent.torn.map_or(extent.end, |torn| extent.end + torn.count as usize);
    let end = torn_end.max(extent.remains) * SECTOR;
    let least = header.least_length(end as u64);
    if length < least {
        return Err(format!("the file was cut short: it ends here, expected at least {least} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::FlushBuffer;

    const STEP: u32 = 8_192;

    fn header(first_flush: u64, first_sequence: u64) -> Header {
        Header { log: 77, first_flush, first_sequence, step: STEP }
    }

    /// A folder with one segment for each header, with these flushes in it.
    fn forged(segments: &[(Header, &[&[u8]])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (header, flushes) in segments {
            let mut bytes = header.encode().to_vec();
            flushes.iter().for_each(|flush| bytes.extend_from_slice(flush));
            bytes.resize(STEP as usize, 0);
            fs::write(folder::segment_path(dir.path(), header.first_sequence), bytes).unwrap();
        }
        dir
    }

    fn flush(number: u64, frames: &[(u16, u64, &[u8])]) -> Vec<u8> {
        let mut buffer = FlushBuffer::default();
        for (kind, sequence, payload) in frames {
            buffer.push(*kind, *sequence, payload);
        }
        buffer.seal(number, header(1, 1).seed()).to_vec()
    }

    fn refusal(dir: &Path) -> String {
        recover(dir, STEP).err().expect("it must not open").to_string()
    }

    #[test]
    fn a_forged_log_that_is_right_opens() {
        let dir = forged(&[
            (header(1, 1), &[&flush(1, &[(0, 1, b"a"), (1, 2, b"")]), &flush(4, &[(NOTE_ROLLED, 3, b"")])]),
            (header(5, 3), &[&flush(9, &[(255, 3, &[7; 900])])]),
        ]);
        let log = recover(dir.path(), STEP).unwrap();
        assert_eq!((log.records.len(), log.next_sequence, log.next_flush), (3, 4, 10));
    }

    #[test]
    fn a_record_out_of_sequence_is_damage() {
        for wrong in [0, 1, 3, u64::MAX] {
            let dir = forged(&[(header(1, 1), &[&flush(1, &[(0, 1, b"a"), (0, wrong, b"b")])])]);
            assert!(refusal(dir.path()).contains("expected 2"));
        }
    }

    #[test]
    fn a_record_of_unknown_kind_and_one_that_is_cut_short_are_damage() {
        let dir = forged(&[(header(1, 1), &[&flush(1, &[(300, 1, b"a")])])]);
        assert!(refusal(dir.path()).contains("unknown kind 300"));
        let mut sectors = [[0; SECTOR]];
        sectors[0][crate::sector::HEAD..][..4].copy_from_slice(&1_000_u32.to_le_bytes());
        let place = crate::sector::Place { flush: 1, index: 0, count: 1 };
        crate::sector::seal_as(&mut sectors[0], place, 100, header(1, 1).seed());
        let dir = forged(&[(header(1, 1), &[&sectors[0]])]);
        assert!(refusal(dir.path()).contains("cut short"));
    }

    #[test]
    fn an_incomplete_flush_in_a_segment_that_is_not_the_last_is_damage() {
        let torn = flush(2, &[(0, 2, &[1; 2_000])]);
        let next = flush(9, &[(0, 2, b"b")]);
        let dir = forged(&[
            (header(1, 1), &[&flush(1, &[(0, 1, b"a")]), &torn[..1_024]]),
            (header(8, 2), &[&next]),
        ]);
        assert!(refusal(dir.path()).contains("flush 2 is incomplete"));
    }

    #[test]
    fn a_flush_behind_the_note_that_the_log_goes_on_is_damage() {
        let rolled = flush(2, &[(NOTE_ROLLED, 2, b"")]);
        let dir = forged(&[
            (header(1, 1), &[&flush(1, &[(0, 1, b"a")]), &rolled, &flush(3, &[(0, 2, b"b")])]),
            (header(4, 3), &[]),
        ]);
        assert!(refusal(dir.path()).contains("follows the end"));
    }

    #[test]
    fn flush_numbers_that_fall_from_one_segment_to_the_next_are_damage() {
        let rolled = flush(7, &[(NOTE_ROLLED, 1, b"")]);
        let dir = forged(&[(header(1, 1), &[&flush(6, &[(0, 1, b"a")])]), (header(6, 2), &[])]);
        assert!(refusal(dir.path()).contains("expected one above 6"));
        let dir = forged(&[(header(8, 1), &[&rolled])]);
        assert!(refusal(dir.path()).contains("expected one above 7"));
    }

    #[test]
    fn another_group_is_refused() {
        let mut bytes = header(1, 1).encode();
        bytes[14] = 3;
        crate::sector::seal(&mut bytes, 0);
        let dir = tempfile::tempdir().unwrap();
        fs::write(folder::segment_path(dir.path(), 1), bytes).unwrap();
        assert!(refusal(dir.path()).contains("group 3"));
    }
}
