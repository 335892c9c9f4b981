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

#[test]
fn a_disk_that_is_turned_back_has_what_it_had() {
    let disk = MemoryDisk::new(1, Story::default());
    let write = |path: &str, bytes: &[u8]| {
        disk.open(Path::new(path), Mode::Create).unwrap().write_at(bytes, 0).unwrap();
    };
    write("/a", b"old");
    let copy = disk.copy();
    write("/a", b"newer");
    write("/b", b"more");
    disk.end_process(());
    disk.turn_back(&copy);
    disk.cut_power(&mut Rng::with_seed(1));
    let mut read = [0; 3];
    let file = disk.open(Path::new("/a"), Mode::Write).unwrap();
    file.read_at(&mut read, 0).unwrap();
    assert_eq!((file.length().unwrap(), &read), (3, b"old"));
    assert!(!disk.exists(Path::new("/b")).unwrap());
}

#[test]
fn a_process_that_has_ended_does_nothing_as_it_is_dropped() {
    let disk = MemoryDisk::new(1, Story::default());
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
