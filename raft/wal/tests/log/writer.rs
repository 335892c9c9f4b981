//! A process that appends, and prints what was acknowledged: for tests that kill it.
//!
//! It is this test binary again; an environment variable makes it run one test, which otherwise does nothing.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use ringfence_wal::{Options, Record, Wal};

const FOLDER: &str = "RINGFENCE_WAL_WRITER";
/// Appends under way at once.
const OUTSTANDING: usize = 6;
/// Records kept when older ones are forgotten.
const KEPT: u64 = 600;

/// The record that has this sequence, always the same.
pub(crate) fn record(sequence: u64) -> Record {
    let mixed = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let size = if mixed >> 60 == 0 { mixed >> 48 & 0x7FFF } else { mixed >> 48 & 0x3FF };
    let payload: Bytes = (0..size).map(|at| (mixed >> (at % 57)) as u8).collect();
    Record { kind: mixed as u8, payload }
}

/// Rolls often, and zeroes ahead often.
pub(crate) fn options() -> Options {
    Options { segment_bytes: 256 << 10, step_bytes: 64 << 10, ..Options::default() }
}

/// A running writer. Killed when dropped.
pub(crate) struct Writer {
    pub(crate) child: Child,
    acknowledged: mpsc::Receiver<u64>,
    reader: Option<JoinHandle<u64>>,
}

impl Writer {
    pub(crate) fn start(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer::writes_until_killed", "--nocapture", "--test-threads=1"])
            .env(FOLDER, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).split(b'\n');
        let (acknowledge, acknowledged) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut last = 0;
            for line in lines.map_while(Result::ok) {
                // The last line may be cut short: then it lacks the full stop.
                let line = String::from_utf8(line).unwrap();
                if let Some(sequence) = line.strip_prefix("ack ").and_then(|rest| rest.strip_suffix('.')) {
                    let sequence = sequence.parse().unwrap();
                    assert!(sequence > last, "acknowledged {sequence} after {last}");
                    last = sequence;
                    // Nobody may be waiting for it.
                    let _ = acknowledge.send(last);
                }
            }
            last
        });
        Self { child, acknowledged, reader: Some(reader) }
    }

    /// Waits until it has acknowledged `more` records after the first. Others are under way then.
    pub(crate) fn write(&self, more: u64) {
        let next = || self.acknowledged.recv_timeout(Duration::from_secs(60)).expect("the writer writes");
        let first = next();
        while next() < first + more {}
    }

    /// Kills it and gives the last sequence it acknowledged; 0 if none.
    pub(crate) fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks a log that a writer left, which acknowledged everything up to a sequence. Gives its last sequence.
pub(crate) fn check(dir: &Path, acknowledged: u64) -> u64 {
    let (wal, records) = Wal::open(dir, options()).unwrap();
    wal.close().unwrap();
    let Some((first, _)) = records.first() else {
        assert_eq!(acknowledged, 0, "all is gone");
        return 0;
    };
    let last = records.last().unwrap().0;
    assert!(last >= acknowledged, "{acknowledged} was acknowledged, {last} is the last");
    assert!(*first <= last.saturating_sub(KEPT).max(1), "records from {first} to {last} are left");
    for ((sequence, read), expected) in records.iter().zip(*first..) {
        assert_eq!(*sequence, expected);
        assert_eq!(*read, record(expected), "record {sequence}");
    }
    last
}

#[test]
fn writes_until_killed() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let (wal, records) = Wal::open(Path::new(&dir), options()).unwrap();
    let mut next = records.last().map_or(1, |(sequence, _)| sequence + 1);
    let (free, slots) = mpsc::channel();
    (0..OUTSTANDING).for_each(|_| free.send(()).unwrap());
    loop {
        slots.recv().unwrap();
        let count = if next % 7 == 0 { 5 } else { 1 };
        let last = next + count - 1;
        let free = free.clone();
        let done = move |outcome: std::io::Result<()>| {
            outcome.unwrap();
            std::io::stdout().write_all(format!("ack {last}.\n").as_bytes()).unwrap();
            free.send(()).unwrap();
        };
        assert_eq!(wal.append((next..=last).map(record), Some(Box::new(done))), last);
        next = last + 1;
        if next % 400 < count {
            wal.forget(last.saturating_sub(KEPT));
        }
    }
}
