//! Data in the page cache only: it can be read, and is not on the disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ringfence_wal::{Options, Record, Wal};

use crate::disk::{self, Mount, file_system, run};
use crate::support::{append, contents, folder, segments, sized, small, try_append};

/// With the header it fills the first 4 KiB, so that the next flush has blocks of its own.
fn first() -> Record {
    sized(7 * 489 - 14)
}

/// Fills the second 4 KiB.
fn second() -> Record {
    sized(8 * 489 - 14)
}

/// The records that are found when the power goes now.
fn after_power_cut(dir: &Path, image: &Path) -> usize {
    let copy = dir.join("copy");
    fs::copy(image, &copy).unwrap();
    let mount = Mount::image(&copy, &dir.join("copied")).unwrap();
    contents(&mount.at().join("log")).len()
}

/// A process was killed between writing and syncing.
#[test]
fn what_opening_returned_is_on_the_disk_though_it_stood_in_the_page_cache_only() {
    let Some((dir, image, mount)) = file_system(24 << 20) else { return };
    let log = mount.at().join("log");
    let (wal, _) = Wal::open(&log, small()).unwrap();
    append(&wal, [first()]);
    append(&wal, [second()]);
    wal.close().unwrap();
    let file = File::options().read(true).write(true).open(&segments(&log)[0]).unwrap();
    let mut flush = vec![0; 4_096];
    file.read_exact_at(&mut flush, 4_096).unwrap();
    file.write_all_at(&[0; 4_096], 4_096).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&flush, 4_096).unwrap();
    assert_eq!(after_power_cut(dir.path(), &image), 1, "the flush must not be on the disk yet");
    let (_wal, records) = Wal::open(&log, small()).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(after_power_cut(dir.path(), &image), 2);
}

/// A sync failed, and with that the kernel called the pages clean: a second sync has nothing to do, succeeds,
/// and proves nothing. The process was restarted, the machine was not.
#[test]
fn what_opening_returned_is_on_the_disk_though_an_earlier_sync_of_it_failed() {
    if !disk::may_mount() {
        return;
    }
    let dir = folder();
    let memory = match Mount::memory(32 << 20, &dir.path().join("memory")) {
        Ok(memory) => memory,
        Err(error) => return println!("skipped: cannot mount here: {error}"),
    };
    let image = memory.at().join("image");
    disk::format(&image, 24 << 20).unwrap();
    run(Command::new("fallocate").args(["-l", "24M"]).arg(&image)).unwrap();
    let mount = Mount::image(&image, &dir.path().join("disk")).unwrap();
    let log = mount.at().join("log");
    // A step that is not made of whole blocks: such a log is written through the page cache.
    let (wal, _) = Wal::open(&log, Options { step_bytes: (64 << 10) + 512, ..small() }).unwrap();
    append(&wal, [first()]);
    // The disk loses the block that the next flush goes to, and has no other to give.
    let block = 4_096 * physical_block(&segments(&log)[0], 1);
    run(Command::new("fallocate").args(["-p", "-l", "4096", "-o", &block.to_string()]).arg(&image)).unwrap();
    let filler = memory.at().join("filler");
    let _ = io::copy(&mut io::repeat(1), &mut File::create(&filler).unwrap());
    try_append(&wal, [second()]).1.unwrap_err();
    fs::remove_file(filler).unwrap();
    wal.close().unwrap_err();
    assert_eq!(after_power_cut(dir.path(), &image), 1, "the flush must not be on the disk");
    let (_wal, records) = Wal::open(&log, small()).unwrap();
    assert_eq!(records.len(), 2, "the flush must be in the page cache");
    assert_eq!(after_power_cut(dir.path(), &image), 2);
}

/// Where on the disk this 4 KiB block of a file is.
fn physical_block(file: &Path, block: u64) -> u64 {
    let output = Command::new("filefrag").args(["-v", "-b4096"]).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        // "   0:        0..      31:       1234..      1265:     32: last,eof"
        let numbers: Vec<u64> = line
            .split([':', '.', ' '])
            .filter(|part| !part.is_empty())
            .map_while(|part| part.parse().ok())
            .collect();
        if let [_, from, to, physical, ..] = numbers[..]
            && (from..=to).contains(&block)
        {
            return physical + block - from;
        }
    }
    panic!("no block {block} in:\n{text}");
}
