//! Disks that fill up and lose power. They need root.
//!
//! ```text
//!  files ──▶ ext4 ──▶ loop device ──▶ page cache of the other ──▶ loop device ──▶ image file, in memory
//!                                     = the disk's write cache
//! ```
//! A loop device writes to its file at once. With a single one, the image would hold writes past the page cache (`O_DIRECT`)
//! that were never synced. With a second one below, these stay in the page cache of the lower device until the upper one is
//! flushed, as in the write cache of a real disk. So the image holds what was synced, and what the kernel wrote back
//! meanwhile, in any order.
//!
//! A power cut is a copy of the image: see [`Disk::cut_power`].

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::output;
use crate::{Cluster, Error, Node};

/// Enough for a file system with a journal.
const LEAST: u64 = 8 << 20;
/// Bounds how long an unused file may stay open.
const UNUSED_WITHIN: Duration = Duration::from_secs(60);

/// A mounted file system. It is unmounted, and its devices freed, when it is dropped or this process ends, however it ends.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    /// The directory of the image; `None` for a file system in memory.
    image: Option<TempDir>,
    /// Unmounts and cleans up when its input is closed: a process that is killed runs no destructors.
    janitor: Child,
}

/// The janitor's script. A process that outlives the mount keeps the disk for as long as it needs it.
const CLEAN_UP: &str = "trap '' INT TERM HUP; cat; umount --lazy \"$1\"; rm -rf \"$2\"";

/// Whether file systems can be mounted here; prints why not. A test that needs them returns then.
pub fn may_mount() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        if !rustix::process::geteuid().is_root() {
            return Some("needs root".to_owned());
        }
        let tried = folder().and_then(|dir| Disk::with_write_cache(dir.path().join("disk"), LEAST).map(drop));
        tried.err().map(|error| format!("root may not mount here: {error}"))
    });
    if let Some(why) = refusal {
        eprintln!("skipped: {why}");
    }
    refusal.is_none()
}

impl Disk {
    /// An empty file system in memory, mounted on a directory that is created if missing.
    pub fn memory(at: impl Into<PathBuf>, bytes: u64) -> Result<Self, Error> {
        let disk = Self::new(at.into(), None)?;
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(&disk.at))?;
        Ok(disk)
    }

    /// An empty ext4 on a disk with a write cache.
    pub fn with_write_cache(at: impl Into<PathBuf>, bytes: u64) -> Result<Self, Error> {
        let disk = Self::new(at.into(), Some(folder()?))?;
        let image = disk.image()?;
        let sized = File::create(&image).and_then(|file| file.set_len(bytes));
        sized.map_err(Error::io("cannot make an image"))?;
        let complete = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).args(complete).arg(&image))?;
        disk.mount()?;
        Ok(disk)
    }

    /// A disk with a write cache for the data of each node of a cluster that is not started.
    pub fn of_each(cluster: &Cluster, bytes: u64) -> Result<Vec<Self>, Error> {
        cluster.nodes().iter().map(|node| Self::with_write_cache(node.data(), bytes)).collect()
    }

    fn new(at: PathBuf, image: Option<TempDir>) -> Result<Self, Error> {
        fs::create_dir_all(&at).map_err(Error::io("cannot make a directory"))?;
        let mut janitor = Command::new("sh");
        janitor.args(["-c", CLEAN_UP, "sh"]).arg(&at).args(image.as_ref().map(TempDir::path));
        // A signal to this process's group must not end it.
        janitor.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let janitor = janitor.spawn().map_err(Error::io("cannot start sh"))?;
        Ok(Self { at, image, janitor })
    }

    /// The directory that it is mounted on.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Fills the disk.
    pub fn fill(&self) -> Result<(), Error> {
        let filled = File::create(self.filler()).and_then(|mut file| io::copy(&mut io::repeat(1), &mut file));
        match filled {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            other => {
                Err(Error::io("cannot fill the disk")(other.err().unwrap_or(io::ErrorKind::Other.into())))
            }
        }
    }

    /// Frees what [`Disk::fill`] took.
    pub fn give_room(&self) -> Result<(), Error> {
        // A process that another thread is starting may still hold the file open: removing it alone would free nothing.
        let emptied = File::create(self.filler()).and_then(|_| fs::remove_file(self.filler()));
        emptied.map_err(Error::io("cannot make room"))
    }

    /// Keeps what a power cut would leave now. Nothing may write to the disk meanwhile.
    pub fn cut_power(&self) -> Result<(), Error> {
        fs::copy(self.image()?, self.left()?).map(drop).map_err(Error::io("cannot copy the image"))
    }

    /// Mounts what [`Disk::cut_power`] kept instead of what was there. Nothing may use the disk any more.
    pub fn restore_power(&self) -> Result<(), Error> {
        self.unmount()?;
        fs::rename(self.left()?, self.image()?).map_err(Error::io("cannot exchange the image"))?;
        self.mount()
    }

    /// A process that another thread is starting may hold a file open until it has become its program.
    fn unmount(&self) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            match run(Command::new("umount").arg(&self.at)) {
                Err(_) if began.elapsed() < UNUSED_WITHIN => thread::sleep(Duration::from_millis(10)),
                unmounted => return unmounted.map(drop),
            }
        }
    }

    /// `commit=3600` puts off the journal's periodic commits: nothing but a sync may flush the write cache.
    fn mount(&self) -> Result<(), Error> {
        let lower = run(Command::new("losetup").args(["--find", "--show"]).arg(self.image()?))?;
        let mounted = run(Command::new("mount").args(["-o", "loop,commit=3600", lower.trim()]).arg(&self.at));
        // It stays until the upper device closes it, which in turn ends with the mount.
        run(Command::new("losetup").args(["--detach", lower.trim()]))?;
        mounted.map(drop)
    }

    fn image(&self) -> Result<PathBuf, Error> {
        self.file("image")
    }

    fn left(&self) -> Result<PathBuf, Error> {
        self.file("left")
    }

    fn file(&self, name: &str) -> Result<PathBuf, Error> {
        let none = || io::Error::new(io::ErrorKind::Unsupported, "it is in memory");
        let dir = self.image.as_ref().ok_or_else(none).map_err(Error::io("the disk has no image"))?;
        Ok(dir.path().join(name))
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Cuts the power of these nodes, each with its data on one of `disks`, and starts them with what is left there.
pub async fn cut_power(nodes: &[&Node], disks: &[Disk]) -> Result<(), Error> {
    let disk = |node: &Node| {
        let found = disks.iter().find(|disk| disk.at == node.data());
        found.ok_or_else(|| Error::Failed(format!("node {} has no disk of its own", node.id())))
    };
    nodes.iter().try_for_each(|node| node.stop())?;
    for node in nodes {
        node.stands_still().await?;
        disk(node)?.cut_power()?;
    }
    nodes.iter().try_for_each(|node| node.kill())?;
    for node in nodes {
        disk(node)?.restore_power()?;
        node.start()?;
    }
    Ok(())
}

/// In memory if the machine has such a directory.
fn folder() -> Result<TempDir, Error> {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    dir.map_err(Error::io("cannot make a directory"))
}

fn run(command: &mut Command) -> Result<String, Error> {
    output(command, "").map_err(Error::io("cannot manage a disk"))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::fs::FileExt;

    use super::*;

    const BLOCK: usize = 4 << 10;
    const FOLDER: &str = "HARNESS_DISK_FOLDER";

    #[test]
    fn a_power_cut_leaves_what_was_synced_and_takes_the_rest_even_past_the_page_cache() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::with_write_cache(dir.path().join("disk"), LEAST).unwrap();
        let (log, block) = (disk.at().join("log"), dir.path().join("block"));
        fs::write(&log, [0; 8 * BLOCK]).unwrap();
        File::open(&log).unwrap().sync_all().unwrap();
        File::open(disk.at()).unwrap().sync_all().unwrap();
        fs::write(&block, [7; BLOCK]).unwrap();
        let write = |at: usize, how: &[&str]| {
            let (to, seek) = (format!("of={}", log.display()), format!("seek={at}"));
            let from = format!("if={}", block.display());
            run(Command::new("dd").args([&from, &to, "bs=4096", "conv=notrunc", &seek]).args(how)).unwrap();
        };
        for round in 0..2 {
            write(4 * round, &["oflag=direct", "conv=notrunc,fdatasync"]);
            write(4 * round + 1, &["oflag=direct"]);
            write(4 * round + 2, &[]);
            fs::write(disk.at().join("new"), "never synced").unwrap();
            disk.cut_power().unwrap();
            let file = File::options().read(true).write(true).open(&log).unwrap();
            file.write_all_at(&[9; BLOCK], 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            disk.restore_power().unwrap();
            let expected: Vec<u8> =
                (0..8).map(|at| if at <= 4 * round && at % 4 == 0 { 7 } else { 0 }).collect();
            let read = fs::read(&log).unwrap();
            let found: Vec<u8> = read.iter().copied().step_by(BLOCK).collect();
            assert_eq!(found, expected);
            assert!(!disk.at().join("new").exists());
        }
    }

    /// A process that another test had just started held the log open, and the disk could not be unmounted.
    #[test]
    fn a_file_that_stays_open_for_a_moment_holds_up_no_power_cut() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::with_write_cache(dir.path().join("disk"), LEAST).unwrap();
        let open = File::create(disk.at().join("log")).unwrap();
        disk.cut_power().unwrap();
        let closes = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            drop(open);
        });
        disk.restore_power().unwrap();
        closes.join().unwrap();
    }

    #[test]
    fn a_full_disk_has_no_room_until_it_is_given_some() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::memory(dir.path().join("disk"), 1 << 20).unwrap();
        let write = || fs::write(disk.at().join("file"), [1; BLOCK]);
        disk.fill().unwrap();
        assert_eq!(write().unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.give_room().unwrap();
        write().unwrap();
    }

    #[test]
    fn a_disk_that_is_dropped_is_unmounted_and_frees_its_devices() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::with_write_cache(dir.path().join("disk"), LEAST).unwrap();
        let image = disk.image().unwrap();
        assert!(is_mounted(dir.path()));
        assert!(has_device(&image));
        drop(disk);
        assert!(!is_mounted(dir.path()));
        waits_until(|| !has_device(&image));
        assert!(!image.parent().unwrap().exists());
    }

    #[test]
    fn a_disk_goes_with_the_process_that_mounted_it_even_if_that_is_killed() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "disk::tests::mounts_until_killed", "--nocapture"])
            .env(FOLDER, dir.path())
            .spawn()
            .unwrap();
        let image = dir.path().join("image");
        waits_until(|| image.exists());
        assert!(is_mounted(dir.path()));
        let image = PathBuf::from(fs::read_to_string(image).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        waits_until(|| !is_mounted(dir.path()) && !has_device(&image) && !image.parent().unwrap().exists());
    }

    /// The other half of the test above, in a process of its own.
    #[test]
    fn mounts_until_killed() {
        let Some(dir) = env::var_os(FOLDER).map(PathBuf::from) else { return };
        let disk = Disk::with_write_cache(dir.join("disk"), LEAST).unwrap();
        fs::write(dir.join("told"), disk.image().unwrap().to_str().unwrap()).unwrap();
        fs::rename(dir.join("told"), dir.join("image")).unwrap();
        loop {
            std::thread::park();
        }
    }

    fn is_mounted(at: &Path) -> bool {
        fs::read_to_string("/proc/mounts").unwrap().contains(at.to_str().unwrap())
    }

    fn has_device(image: &Path) -> bool {
        run(Command::new("losetup").arg("--list")).unwrap().contains(image.to_str().unwrap())
    }

    fn waits_until(condition: impl Fn() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not come about");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
