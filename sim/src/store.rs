//! What the node of one machine stores on: a disk in memory, and snapshots, which sled would write past it.

mod snapshots;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fastrand::Rng;
use ringfence_disk::{Fault, Image, MemoryDisk, Part};
use ringfence_raft::{NodeId, SnapshotStore, Storage, WallClock};
use ringfence_wal::disk::Disk;

use self::snapshots::{Snapshot, Snapshots};
use crate::story::Story;

/// The unix time, in milliseconds, at which a run begins: in January 2027.
const EPOCH: u64 = 1_800_000_000_000;

/// The store of a machine. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Store {
    /// The disk. Each step of writing a snapshot is an operation of it, too.
    pub disk: MemoryDisk,
    snapshots: Arc<Mutex<BTreeMap<String, Snapshot>>>,
    /// The time of the machine, in milliseconds.
    now: Arc<AtomicU64>,
}

/// All that was in a store at one time.
#[derive(Clone)]
pub struct Copy {
    disk: Image,
    snapshots: BTreeMap<String, Snapshot>,
}

impl Store {
    /// The empty store of a node.
    pub fn new(node: NodeId, story: Story) -> Self {
        let (now, base) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let (clock, told) = (Arc::clone(&now), Arc::clone(&now));
        let disk = MemoryDisk::default()
            .keep_work()
            .clock(move || base + Duration::from_millis(clock.load(Relaxed)))
            .watch(move |what, fault| {
                let now = told.load(Relaxed);
                story.detail(now, || format!("node {node} {}", what()));
                if fault == Some(Fault::Error) {
                    story.tell(now, format!("an operation of the disk of node {node} fails"));
                }
            });
        Self { disk, snapshots: Arc::default(), now }
    }

    /// Stops the machine at the `operations`-th operation of the disk from now on.
    pub fn stop_at(&self, operations: u64) {
        self.disk.fault(operations.saturating_sub(1) as usize, Fault::Stop);
    }

    /// Fails the `operations`-th operation of the disk from now on.
    pub fn fail_at(&self, operations: u64) {
        self.disk.fault(operations.saturating_sub(1) as usize, Fault::Error);
    }

    /// Advances the clock that times flushes to `now`, in milliseconds.
    pub fn advance_to(&self, now: u64) {
        self.now.store(now, Relaxed);
    }

    /// The wall clock of the machine, `ahead` milliseconds ahead of the right time.
    pub fn wall_clock(&self, ahead: i64) -> WallClock {
        let now = Arc::clone(&self.now);
        WallClock::simulated(move || (EPOCH + now.load(Relaxed)).saturating_add_signed(ahead))
    }

    /// Cuts the power, once the process has ended. Of what was not synced, `rng` decides what is kept. Returns whether a write
    /// was torn: kept in part.
    pub fn cut_power(&self, rng: &mut Rng) -> bool {
        let odds = *rng.choice(&[0, 10, 50, 90, 100]).unwrap_or(&0);
        let is_torn = self.disk.cut_power(&mut |part| part == Part::Write || rng.u32(0..100) < odds);
        self.lock().retain(|_, snapshot| snapshot.is_finished);
        is_torn
    }

    /// Copies all that a reader sees now.
    pub fn copy(&self) -> Copy {
        Copy { disk: self.disk.copy(), snapshots: self.lock().clone() }
    }

    /// Has the contents of a copy, once the process that used the disk has ended.
    pub fn turn_back(&self, copy: &Copy) {
        self.disk.turn_back(&copy.disk);
        self.lock().clone_from(&copy.snapshots);
    }

    /// The size of the largest snapshot.
    pub fn snapshot_bytes(&self) -> u64 {
        let snapshots = self.lock();
        let sizes = snapshots.values().map(|it| it.contents.values().map(|value| value.len() as u64).sum());
        sizes.max().unwrap_or(0)
    }

    /// Flips one bit of a snapshot; `false` if there is none.
    pub fn rot_snapshot(&self, rng: &mut Rng) -> bool {
        let mut snapshots = self.lock();
        // Until it is renamed, a node does not use a snapshot.
        let in_use = |name: &&String| name.bytes().all(|byte| byte.is_ascii_digit());
        let in_use: Vec<String> = snapshots.keys().filter(in_use).cloned().collect();
        if in_use.len() < 2 {
            return false;
        }
        // The older one: they are never both damaged.
        let Some(snapshot) = in_use.first().and_then(|name| snapshots.get_mut(name)) else {
            return false;
        };
        let mut contents = (*snapshot.contents).clone();
        let place = rng.usize(..contents.len().max(1));
        let Some(value) = contents.values_mut().nth(place).filter(|value| !value.is_empty()) else {
            return false;
        };
        let byte = rng.usize(..value.len());
        value[byte] ^= 1 << rng.u32(..8);
        snapshot.contents = Arc::new(contents);
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Snapshot>> {
        self.snapshots.lock().expect("nothing panics while the snapshots are locked")
    }
}

impl Storage for Store {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn snapshots(&self, dir: &Path) -> io::Result<Arc<dyn SnapshotStore>> {
        Ok(Arc::new(Snapshots { store: self.clone(), by: self.disk.in_use(), dir: dir.to_owned() }))
    }
}
