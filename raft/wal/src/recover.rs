//! Opening: read all segments, refuse what cannot be, cut off a torn tail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::dir;
use crate::disk::{Disk, File, Mode};
use crate::error::OpenError;
use crate::frame::{Frame, NOTE_FORGOTTEN, NOTE_ROLLED};
use crate::header::{Header, Refused, VERSION};
use crate::options::Options;
use crate::record::{Record, Records};
use crate::scan::{Damage, Extent, scan};
use crate::sector::{SECTOR, Sector};
use crate::segment::Segment;
use crate::segments::Segments;

/// Opens the log in a directory, or creates one. Returns what to write to, the records, and how many bytes of a torn tail
/// were cut off.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: Options,
) -> Result<(Segments, Records, u64), OpenError> {
    dir::create(&**disk, dir)?;
    let mut firsts = dir::list(&**disk, dir)?;
    remove_unfinished(&**disk, dir)?;
    let open_dir = disk.open(dir, Mode::Read).map_err(OpenError::io("open", dir))?;
    let mut cut = 0;
    let mut reader = Reader::new(&**disk, dir, Mode::Write);
    let active = match reader.read_all(&firsts)? {
        None => {
            firsts = vec![1];
            let header =
                Header { log: random(), first_flush: 1, first_sequence: 1, step: options.step_bytes };
            Segment::create(&**disk, dir, &*open_dir, header)
                .map_err(OpenError::io("make a segment in", dir))?
        }
        Some(tail) => {
            if let Some(unused) = reader.unused.take() {
                firsts.pop();
                disk.remove(&unused).map_err(OpenError::io("remove", &unused))?;
            }
            open_dir.sync_all().map_err(OpenError::io("sync", dir))?;
            cut = tail.report_torn();
            let Tail { path, file, header, length, extent, last_flush, .. } = tail;
            let end = (extent.end * SECTOR) as u64;
            let failed = OpenError::io("write", &path);
            Segment::resume(&**disk, path.clone(), file, header, last_flush.as_flattened(), end, length)
                .map_err(failed)?
        }
    };
    let segments = Segments {
        disk: Arc::clone(disk),
        options,
        dir: dir.to_owned(),
        open_dir: open_dir.into(),
        firsts,
        active,
        is_overlong: false,
        next_flush: reader.flush + 1,
        next_sequence: reader.next_sequence,
    };
    Ok((segments, reader.records, cut))
}

/// The records of the log in a directory, with their sequences. Changes nothing: skips what opening would cut off or
/// remove. Nobody may be writing to the log.
///
/// # Errors
/// As of [`Wal::open`](crate::Wal::open); also if there is no such directory.
pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Records, OpenError> {
    let mut reader = Reader::new(disk, dir, Mode::Read);
    reader.read_all(&dir::list(disk, dir)?)?;
    Ok(reader.records)
}

fn remove_unfinished(disk: &dyn Disk, dir: &Path) -> Result<(), OpenError> {
    let path = dir::temporary_path(dir);
    match disk.remove(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(OpenError::io("remove", &path)(error))
        }
        _ => Ok(()),
    }
}

/// The keys of the standard library's hash maps are random, and enough to tell one log from another.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// What has been read so far.
struct Reader<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    mode: Mode,
    log: Option<u64>,
    records: Records,
    next_sequence: u64,
    /// Number of the last flush, whole or torn.
    flush: u64,
    /// The segments before this sequence may be gone.
    forgotten: u64,
    sectors: Vec<Sector>,
    /// The last segment, if it is to be removed: it holds nothing, and the one before does not say that the log continues.
    /// The program ended between creating this one and noting so.
    unused: Option<PathBuf>,
}

/// The last segment that was read.
struct Tail {
    path: PathBuf,
    file: Box<dyn File>,
    header: Header,
    length: u64,
    extent: Extent,
    last_flush: Vec<Sector>,
    /// It ends with the note that the log continues in another.
    is_rolled: bool,
}

impl<'a> Reader<'a> {
    fn new(disk: &'a dyn Disk, dir: &'a Path, mode: Mode) -> Self {
        Self {
            disk,
            dir,
            mode,
            log: None,
            records: Vec::new(),
            next_sequence: 1,
            flush: 0,
            forgotten: 1,
            sectors: Vec::new(),
            unused: None,
        }
    }

    /// Reads these segments, and returns the one to continue in; `None` if there are none.
    fn read_all(&mut self, firsts: &[u64]) -> Result<Option<Tail>, OpenError> {
        self.next_sequence = firsts.first().copied().unwrap_or(1);
        let mut tail = None;
        for (position, &first) in firsts.iter().enumerate() {
            let is_last = position + 1 == firsts.len();
            let segment = self.segment(first, tail.is_none(), is_last)?;
            let is_unused = is_last && segment.extent.end == 1 && segment.extent.torn.is_none();
            match &tail {
                Some(Tail { is_rolled: false, .. }) if is_unused => self.unused = Some(segment.path),
                _ => tail = Some(segment),
            }
        }
        tail.as_ref().map_or(Ok(()), |tail| self.check_ends(tail))?;
        Ok(tail)
    }

    /// Reads the segment that starts with sequence `first`.
    fn segment(&mut self, first: u64, is_first: bool, is_last: bool) -> Result<Tail, OpenError> {
        let path = dir::segment_path(self.dir, first);
        let damaged = |offset, what| OpenError::Damaged { file: path.clone(), offset, what };
        let file = self.disk.open(&path, self.mode).map_err(OpenError::io("open", &path))?;
        let length = self.load(&*file).map_err(OpenError::io("read", &path))?;
        let header = self.header(first, is_first).map_err(|refused| match refused {
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
                let what = "a flush follows the end of the segment".to_owned();
                return Err(Damage((at * SECTOR) as u64, what));
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
        // What was read may be in the page cache only.
        file.sync_all().map_err(OpenError::io("sync", &path))?;
        let last_flush = sectors[extent.last_flush..extent.end].to_vec();
        self.flush = flush;
        self.sectors = sectors;
        Ok(Tail { path, file, header, length, extent, last_flush, is_rolled })
    }

    /// Reads a file into whole sectors, the last filled up with zeros.
    fn load(&mut self, file: &dyn File) -> std::io::Result<u64> {
        let length = file.length()?;
        self.sectors.resize((length as usize).div_ceil(SECTOR), [0; SECTOR]);
        if let Some(last) = self.sectors.last_mut() {
            *last = [0; SECTOR];
        }
        file.read_at(&mut self.sectors.as_flattened_mut()[..length as usize], 0)?;
        Ok(length)
    }

    /// Checks the header against the name and against what came before.
    fn header(&mut self, first: u64, is_first: bool) -> Result<Header, Refused> {
        let header = Header::decode(self.sectors.first().unwrap_or(&[0; SECTOR]))?;
        let Header { log, first_sequence, first_flush, .. } = header;
        let (expected, flush) = (self.next_sequence, self.flush);
        let what = if first_sequence != first {
            format!("the segment starts with record {first_sequence}, its name says {first}")
        } else if first != expected {
            format!(
                "the segment starts with record {first}, expected {expected}: a segment is missing or cut short"
            )
        } else if *self.log.get_or_insert(log) != log {
            "the segment belongs to another log than the one before".to_owned()
        } else if !is_first && first_flush <= flush {
            format!("the segment starts with flush {first_flush}, expected one above {flush}")
        } else {
            return Ok(header);
        };
        Err(Refused::Damaged(what))
    }

    /// Takes in one record or note.
    fn take(&mut self, at: usize, frame: &Frame<'_>) -> Result<(), Damage> {
        let refuse = |what| Err(Damage((at * SECTOR) as u64, what));
        let (found, expected) = (frame.sequence, self.next_sequence);
        if found != expected {
            return refuse(format!("this flush holds record {found}, expected {expected}"));
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
                // A note was once followed by one that said less.
                Ok(bytes) => self.forgotten = self.forgotten.max(u64::from_le_bytes(bytes)),
                Err(_) => return refuse("this flush holds a malformed note".to_owned()),
            },
            (_, kind) => return refuse(format!("this flush holds a record of unknown kind {kind}")),
        }
        Ok(())
    }

    /// Checks that no segment is missing before the first and behind the last.
    fn check_ends(&self, tail: &Tail) -> Result<(), OpenError> {
        let first = self.records.first().map_or(self.next_sequence, |(sequence, _)| *sequence);
        if first > self.forgotten {
            return Err(OpenError::Damaged {
                file: dir::segment_path(self.dir, first),
                offset: 0,
                what: format!(
                    "the log starts with record {first}, but only those before {} were given up: the segments before \
                     this one are missing",
                    self.forgotten
                ),
            });
        }
        if tail.is_rolled {
            let missing = dir::segment_path(self.dir, self.next_sequence);
            return Err(OpenError::Damaged {
                file: tail.path.clone(),
                offset: (tail.extent.last_flush * SECTOR) as u64,
                what: format!("the log goes on in {}, which is missing", missing.display()),
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
mod tests;
