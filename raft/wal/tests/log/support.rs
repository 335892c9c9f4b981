//! Shared by the tests of the log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bytes::Bytes;
use ringfence_wal::{OpenError, Options, Record, Wal};
use tempfile::TempDir;

/// A folder in memory if the machine has one: thousands of openings sync it.
pub(crate) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory).unwrap() } else { TempDir::new().unwrap() }
}

/// Many segments from few records.
pub(crate) fn small() -> Options {
    Options { segment_bytes: 16 << 10, step_bytes: 4 << 10, ..Options::default() }
}

/// A record that carries a number, and more or less of other bytes.
pub(crate) fn record(number: u64) -> Record {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(8 + (number * 37 % 700) as usize, number as u8);
    Record { kind: number as u8, payload: payload.into() }
}

/// The number that a record carries.
pub(crate) fn number(record: &Record) -> u64 {
    u64::from_le_bytes(record.payload[..8].try_into().unwrap())
}

/// A record of so many bytes.
pub(crate) fn sized(bytes: usize) -> Record {
    let payload: Bytes = (0..bytes).map(|at| (at % 251) as u8).collect();
    Record { kind: 7, payload }
}

/// Appends and waits for the disk.
pub(crate) fn append(wal: &Wal, records: impl IntoIterator<Item = Record>) -> u64 {
    let (sequence, outcome) = try_append(wal, records);
    outcome.unwrap();
    sequence
}

/// Appends and waits for the outcome.
pub(crate) fn try_append(wal: &Wal, records: impl IntoIterator<Item = Record>) -> (u64, io::Result<()>) {
    let (sender, receiver) = mpsc::channel();
    let sequence = wal.append(records, Some(Box::new(move |outcome| sender.send(outcome).unwrap())));
    (sequence, receiver.recv().unwrap())
}

/// Opens, reads and closes.
pub(crate) fn contents(dir: &Path) -> Vec<(u64, Record)> {
    let (wal, records) = Wal::open(dir, small()).unwrap();
    wal.close().unwrap();
    records
}

/// All files of a log, oldest first.
pub(crate) fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Twenty records in nine flushes, in one segment: several in a flush, empty ones, ones larger than a
/// sector. Gives the folder and, flush by flush, the number of records there are from then on and the byte
/// at which it ends.
pub(crate) fn twenty() -> (TempDir, Vec<(usize, u64)>) {
    let flushes: [&[usize]; 9] =
        [&[5], &[0, 30, 0], &[700], &[20, 1_200, 3], &[0], &[40; 6], &[475], &[0, 0], &[8, 1_000]];
    let dir = folder();
    let options = Options { step_bytes: 16 << 10, ..Options::default() };
    let (wal, _) = Wal::open(dir.path(), options).unwrap();
    let (mut count, mut ends) = (0, vec![(0, 512)]);
    for sizes in flushes {
        append(&wal, sizes.iter().map(|&size| sized(size)));
        count += sizes.len();
        ends.push((count, 512 + wal.stats().bytes));
    }
    assert_eq!((count, wal.stats().flushes), (20, 9));
    (dir, ends)
}

/// A copy of a log in a folder of its own.
pub(crate) fn copy(dir: &Path) -> TempDir {
    let to = folder();
    for file in segments(dir) {
        std::fs::copy(&file, to.path().join(file.file_name().unwrap())).unwrap();
    }
    to
}

/// The refusal of a log that must not open, which must be damage: its file's name, offset and text.
pub(crate) fn refusal(dir: &Path) -> (String, u64, String) {
    match Wal::open(dir, small()) {
        Err(OpenError::Damaged { file, offset, what }) => {
            (file.file_name().unwrap().to_str().unwrap().to_owned(), offset, what)
        }
        Err(other) => panic!("refused, but with: {other}"),
        Ok((_, records)) => panic!("opened with {} records", records.len()),
    }
}
