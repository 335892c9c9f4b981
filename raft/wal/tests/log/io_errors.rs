//! An I/O error is final.

use std::path::Path;
use std::process::Command;

use ringfence_wal::{Options, Wal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::disk::{self, Mount};
use crate::support::{append, contents, folder, record, sized, small, try_append};

const FOLDER: &str = "RINGFENCE_WAL_LIMITED";
const ACKNOWLEDGED: u64 = 20;

#[test]
fn an_io_error_is_final_and_takes_nothing_that_was_acknowledged() {
    let dir = folder();
    // Ignored signals stay ignored in the child, so that it gets an error instead.
    let status = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "io_errors::meets_the_limit", "--nocapture"])
        .env(FOLDER, dir.path())
        .status()
        .unwrap();
    assert!(status.success());
    let records = contents(dir.path());
    let expected: Vec<_> = (1..=ACKNOWLEDGED).map(|number| (number, record(number))).collect();
    assert_eq!(records, expected);
}

/// The other half of the test above, in a process of its own: the limit holds for a whole process.
#[test]
fn meets_the_limit() {
    let Some(dir) = std::env::var_os(FOLDER) else { return };
    let (wal, _) = Wal::open(Path::new(&dir), Options::default()).unwrap();
    for number in 1..=ACKNOWLEDGED {
        append(&wal, [record(number)]);
    }
    // The next flush breaks off in the middle of its second sector.
    let former = getrlimit(Resource::Fsize);
    let limit = 512 + wal.stats().bytes + 700;
    setrlimit(Resource::Fsize, Rlimit { current: Some(limit), maximum: former.maximum }).unwrap();
    assert_eq!(wal.failure(), None);
    let (_, outcome) = try_append(&wal, [sized(3_000)]);
    let error = outcome.unwrap_err();
    assert_eq!(wal.failure(), Some(error.to_string()));
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    // The disk is well again, and yet nothing is tried again.
    setrlimit(Resource::Fsize, former).unwrap();
    let flushes = wal.stats().flushes;
    for _ in 0..3 {
        let (_, outcome) = try_append(&wal, [record(99)]);
        assert_eq!(outcome.unwrap_err().to_string(), error.to_string());
        let (_, outcome) = try_append(&wal, []);
        assert_eq!(outcome.unwrap_err().to_string(), error.to_string());
    }
    wal.forget(ACKNOWLEDGED);
    assert_eq!(wal.stats().flushes, flushes);
    assert_eq!(wal.close().unwrap_err().to_string(), error.to_string());
}

/// The disk under the file system fills up: writing succeeds, into the page cache, and syncing does not.
#[test]
fn a_failed_sync_is_final_and_takes_nothing_that_was_acknowledged() {
    if !disk::may_mount() {
        return;
    }
    let dir = folder();
    let memory = match Mount::memory(32 << 20, &dir.path().join("memory")) {
        Ok(memory) => memory,
        Err(error) => return println!("skipped: cannot mount here: {error}"),
    };
    let image = memory.at().join("image");
    disk::format(&image, 64 << 20).unwrap();
    let mounted = Mount::image(&image, &dir.path().join("disk")).unwrap();
    let log = mounted.at().join("log");
    let (wal, _) = Wal::open(&log, small()).unwrap();
    let mut acknowledged = append(&wal, (1..=50).map(record));
    // What is left of the memory is taken by somebody else.
    let filler = memory.at().join("filler");
    let _ = std::io::copy(&mut std::io::repeat(1), &mut std::fs::File::create(&filler).unwrap());
    let error = loop {
        let (sequence, outcome) = try_append(&wal, [record(acknowledged + 1)]);
        match outcome {
            Ok(()) => acknowledged = sequence,
            Err(error) => break error,
        }
        assert!(acknowledged < 100_000, "the disk did not fill up");
    };
    std::fs::remove_file(filler).unwrap();
    let (_, outcome) = try_append(&wal, [record(0)]);
    assert_eq!(outcome.unwrap_err().to_string(), error.to_string());
    assert_eq!(wal.close().unwrap_err().to_string(), error.to_string());
    drop(mounted);
    let mounted = Mount::image(&image, &dir.path().join("disk")).unwrap();
    let records = contents(&mounted.at().join("log"));
    assert!(records.len() as u64 >= acknowledged);
    for (number, read) in (1..).zip(records).take(acknowledged as usize) {
        assert_eq!(read, (number, record(number)));
    }
}
