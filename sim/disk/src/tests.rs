use std::path::Path;

use ringfence_wal::disk::{Disk, Mode};

use super::*;

/// Uses the disk as it is dropped, as tasks do.
struct Untidy(MemoryDisk);

impl Drop for Untidy {
    fn drop(&mut self) {
        let _ = self.0.remove(Path::new("/file"));
        let _ = self.0.spawn("more", 0, Box::new(|| {}));
    }
}

fn write(disk: &MemoryDisk, path: &str, bytes: &[u8]) {
    disk.open(Path::new(path), Mode::Create).unwrap().write_at(bytes, 0).unwrap();
}

fn sync(disk: &MemoryDisk, path: &str) {
    disk.create_dir(Path::new("/")).unwrap();
    disk.open(Path::new(path), Mode::Write).unwrap().sync_all().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
}

#[test]
fn a_disk_that_is_turned_back_has_what_it_had() {
    let disk = MemoryDisk::default();
    write(&disk, "/a", b"old");
    let copy = disk.copy();
    write(&disk, "/a", b"newer");
    write(&disk, "/b", b"more");
    disk.end_process(());
    disk.turn_back(&copy);
    let left = disk.after_power_cut(0);
    assert_eq!(left.read(Path::new("/a")).unwrap(), b"old");
    assert!(!left.exists(Path::new("/b")).unwrap());
}

#[test]
fn a_process_that_has_ended_does_nothing_as_it_is_dropped() {
    let disk = MemoryDisk::default().keep_work();
    drop(disk.open(Path::new("/file"), Mode::Create).unwrap());
    let queued = Untidy(disk.clone());
    disk.spawn("work", 0, Box::new(move || drop(queued))).unwrap();
    let operations = disk.operations();
    disk.end_process(Untidy(disk.clone()));
    assert!(disk.exists(Path::new("/file")).unwrap());
    assert_eq!((disk.operations(), disk.take_work().len()), (operations, 0));
    // The next process uses it again.
    disk.remove(Path::new("/file")).unwrap();
}

#[test]
fn a_power_cut_may_undo_that_a_file_was_emptied_and_written() {
    let disk = MemoryDisk::default();
    write(&disk, "/a", &[1; 1_000]);
    sync(&disk, "/a");
    write(&disk, "/a", &[2; 600]);
    let mut left: Vec<Vec<u8>> =
        (0..200).map(|seed| disk.after_power_cut(seed).read(Path::new("/a")).unwrap()).collect();
    assert_eq!((&left[0], &left[1]), (&vec![1; 1_000], &vec![2; 600]));
    left.sort();
    left.dedup();
    // Emptied or not, and of the two sectors none, one or both.
    assert_eq!(left.len(), 8);
}

#[test]
fn a_fault_happens_to_its_operation_and_is_seen() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watcher = Arc::clone(&seen);
    let disk = MemoryDisk::default().watch(move |what, fault| watcher.lock().unwrap().push((what(), fault)));
    disk.create_dir(Path::new("/")).unwrap();
    let file = disk.open(Path::new("/a"), Mode::Create).unwrap();
    disk.fault(1, Fault::Error);
    disk.fault(2, Fault::LeftOut);
    disk.fault(0, Fault::Stop);
    disk.fault(3, Fault::Stop);
    file.write_at(b"a", 0).unwrap();
    assert!(file.write_at(b"b", 0).is_err() && disk.has_failed());
    file.sync_data().unwrap();
    assert!(file.write_at(b"c", 0).is_err() && disk.is_off() && file.sync_data().is_err());
    assert_eq!(disk.read(Path::new("/a")).unwrap(), b"c");
    let told = [
        ("creates /a", None),
        ("writes 1 bytes at 0 of /a", None),
        ("writes 1 bytes at 0 of /a", Some(Fault::Error)),
        ("syncs /a", Some(Fault::LeftOut)),
        ("writes 1 bytes at 0 of /a", Some(Fault::Stop)),
    ];
    assert_eq!(*seen.lock().unwrap(), told.map(|(what, fault)| (what.to_owned(), fault)));
}
