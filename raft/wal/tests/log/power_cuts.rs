//! Power cuts on a real file system: the disk at one moment, without what is only in the page cache.
//!
//! The log is on an ext4 file system in an image file. The writer is stopped, the image copied, and the copy
//! mounted: what the writer wrote and did not sync is not in it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::disk::{Mount, file_system, run};
use crate::writer::{Writer, check};

/// Stops the writer, and copies the disk as it is then. Returns what was acknowledged.
fn cut_power(writer: Writer, image: &Path, copy: &Path) -> u64 {
    let pid = writer.child.id();
    run(Command::new("kill").args(["-STOP", &pid.to_string()])).unwrap();
    let started = Instant::now();
    while !is_stopped(pid) {
        assert!(started.elapsed() < Duration::from_secs(60), "the writer does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::copy(image, copy).unwrap();
    writer.kill()
}

/// Whether every thread is stopped: none is in a system call that still writes to the disk.
fn is_stopped(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    })
}

#[test]
fn a_power_cut_leaves_all_that_was_acknowledged() {
    let Some((dir, image, mount)) = file_system(48 << 20) else { return };
    let copy = dir.path().join("copy");
    let mut last = 0;
    for round in 0..8 {
        let writer = Writer::start(&mount.at().join("log"));
        writer.write(60 + round * 211 % 800);
        let acknowledged = cut_power(writer, &image, &copy).max(last);
        let after_cut = Mount::image(&copy, &dir.path().join("copied")).unwrap();
        check(&after_cut.at().join("log"), acknowledged);
        drop(after_cut);
        // The next round goes on with the disk that had its power.
        last = check(&mount.at().join("log"), acknowledged);
    }
    assert!(last > 300, "only {last} records were written: nothing was tried");
}

/// What a killed process left may be in the page cache only; the next opening relies on it.
#[test]
fn what_a_killed_process_left_and_the_next_opening_read_outlives_a_power_cut() {
    let Some((dir, image, mount)) = file_system(48 << 20) else { return };
    let copy = dir.path().join("copy");
    let mut last = 0;
    for round in 0..8 {
        let writer = Writer::start(&mount.at().join("log"));
        writer.write(50 + round * 163 % 400);
        let acknowledged = writer.kill().max(last);
        last = check(&mount.at().join("log"), acknowledged);
        // No matter what was acknowledged: this was read.
        fs::copy(&image, &copy).unwrap();
        let after_cut = Mount::image(&copy, &dir.path().join("copied")).unwrap();
        check(&after_cut.at().join("log"), last);
        drop(after_cut);
        let writer = Writer::start(&mount.at().join("log"));
        writer.write(50);
        let acknowledged = cut_power(writer, &image, &copy).max(last);
        let after_cut = Mount::image(&copy, &dir.path().join("copied")).unwrap();
        check(&after_cut.at().join("log"), acknowledged);
    }
    assert!(last > 300, "only {last} records were written: nothing was tried");
}
