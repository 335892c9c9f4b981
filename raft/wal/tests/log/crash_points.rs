//! A power cut, an I/O error or a lost sync at every single disk operation.
//!
//! The log runs on a disk in memory, and its flusher without a thread: the test decides when it flushes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use ringfence_disk::{Fault, MemoryDisk, Operation};
use ringfence_wal::{Options, Record, Wal};

use crate::support::record;

const DIR: &str = "/log";
/// How a power cut ends: with nothing that was not synced, with all of it, or with parts.
const OUTCOMES: std::ops::Range<u64> = 0..5;

/// One that is written past the page cache, and one that is not.
const STEPS: [u32; 2] = [4_096, 2_048];

fn options(step_bytes: u32) -> Options {
    Options { segment_bytes: 12 << 10, step_bytes, ..Options::default() }
}

fn open(disk: &MemoryDisk, step: u32) -> Result<(Wal, Vec<(u64, Record)>), String> {
    let disk = Arc::new(disk.clone());
    Wal::open_on(disk, Path::new(DIR), options(step)).map_err(|error| error.to_string())
}

/// What the owner of a log knows.
#[derive(Default)]
struct Known {
    appended: u64,
    /// Records up to here were acknowledged, or returned by an opening.
    acknowledged: Arc<AtomicU64>,
    forgotten: u64,
    /// An append failed.
    failed: Arc<Mutex<Option<u64>>>,
}

impl Known {
    fn append(&mut self, wal: &Wal, count: u64, is_awaited: bool) {
        let records = (self.appended + 1..).take(count as usize).map(record);
        self.appended += count;
        let (last, acknowledged) = (self.appended, Arc::clone(&self.acknowledged));
        let failed = Arc::clone(&self.failed);
        let done = move |outcome: std::io::Result<()>| match outcome {
            Ok(()) => {
                assert_eq!(*failed.lock().unwrap(), None, "acknowledged after a failure");
                acknowledged.store(last, Relaxed);
            }
            Err(_) => *failed.lock().unwrap() = Some(last),
        };
        let done = is_awaited.then(|| Box::new(done) as ringfence_wal::Done);
        assert_eq!(wal.append(records, done), last);
    }

    /// Appends one by one and many at once, awaited and not, truncates the front, and opens the log again.
    fn run(&mut self, disk: &MemoryDisk, step: u32) -> Result<(), String> {
        for round in 0..3 {
            let (wal, _) = open(disk, step)?;
            for turn in 0..8 {
                self.append(&wal, 1 + (round + turn) % 3, turn % 4 != 1);
                if turn % 3 != 0 {
                    disk.flush();
                }
                if turn == 5 && round > 0 {
                    self.forgotten = self.appended - 4;
                    wal.forget(self.forgotten);
                }
            }
            self.append(&wal, 1 + 40 * (round % 2), true);
            while disk.flush() {}
            if let Some(last) = *self.failed.lock().unwrap() {
                return Err(format!("the append of record {last} failed"));
            }
        }
        Ok(())
    }

    /// Opens what a power cut left, and compares.
    fn check(&self, disk: &MemoryDisk, step: u32) -> Result<Vec<(u64, Record)>, String> {
        let (_wal, records) = open(disk, step)?;
        let acknowledged = self.acknowledged.load(Relaxed);
        let first = records.first().map_or(1, |(sequence, _)| *sequence);
        let last = records.last().map_or(0, |(sequence, _)| *sequence);
        if last < acknowledged {
            return Err(format!("{acknowledged} was acknowledged, {last} is the last"));
        }
        if last > self.appended || first > self.forgotten.max(1) {
            return Err(format!("records from {first} to {last} of {} are there", self.appended));
        }
        match records.iter().zip(first..).find(|(read, number)| **read != (*number, record(*number))) {
            Some((read, number)) => Err(format!("record {number} is {read:?}")),
            None => Ok(records),
        }
    }
}

/// Runs the script with these faults, and returns what its owner knows then.
fn played(step: u32, faults: &[(usize, Fault)]) -> (MemoryDisk, Known) {
    let disk = MemoryDisk::default();
    faults.iter().for_each(|(at, fault)| disk.fault(*at, *fault));
    let mut known = Known::default();
    let _ = known.run(&disk, step);
    (disk, known)
}

#[test]
fn a_power_cut_at_any_disk_operation_loses_nothing_acknowledged_and_invents_nothing() {
    for step in STEPS {
        let (disk, known) = played(step, &[]);
        let operations = disk.operations();
        assert_eq!(known.acknowledged.load(Relaxed), known.appended);
        for needed in [Operation::Rename, Operation::Remove, Operation::SyncData] {
            let count = operations.iter().filter(|operation| **operation == needed).count();
            assert!(count >= 3, "{needed:?} only {count} times: nothing was tried");
        }
        for cut in 0..=operations.len() {
            let (disk, known) = played(step, &[(cut, Fault::Stop)]);
            for outcome in OUTCOMES {
                let told = |error| panic!("step {step}, operation {cut}, outcome {outcome}: {error}");
                let left = disk.after_power_cut(outcome);
                let records = known.check(&left, step).unwrap_or_else(told);
                // What an opening has returned is on disk.
                let again = known.check(&left.after_power_cut(0), step).unwrap_or_else(told);
                assert_eq!(again, records, "step {step}, operation {cut}, outcome {outcome}");
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_disk_operation_of_an_opening_loses_nothing() {
    for step in STEPS {
        let count = played(step, &[]).0.operations().len();
        for cut in (0..count).step_by(7) {
            let (disk, known) = played(step, &[(cut, Fault::Stop)]);
            for outcome in OUTCOMES {
                for second in 0.. {
                    let left = disk.after_power_cut(outcome);
                    left.fault(second, Fault::Stop);
                    let is_open = open(&left, step).is_ok();
                    let left = left.after_power_cut(outcome + second as u64);
                    known.check(&left, step).unwrap_or_else(|error| {
                        panic!("step {step}, operations {cut} and {second}, outcome {outcome}: {error}")
                    });
                    if is_open {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn an_error_of_any_disk_operation_is_final_and_takes_nothing_acknowledged() {
    for step in STEPS {
        let count = played(step, &[]).0.operations().len();
        for at in 0..count {
            let (disk, known) = played(step, &[(at, Fault::Error)]);
            for outcome in OUTCOMES {
                let left = disk.after_power_cut(outcome);
                known.check(&left, step).unwrap_or_else(|error| {
                    panic!("step {step}, operation {at}, outcome {outcome}: {error}")
                });
            }
        }
    }
}

/// Leaving out any sync that an acknowledgement or a new segment rests on must fail the checks above.
///
/// It does not for the others: those of an opening matter only after a killed process; that of a deletion only keeps the
/// order; and the note that the log continues guards against the loss of a segment, not against a power cut.
#[test]
fn a_sync_that_is_left_out_is_noticed() {
    let step = STEPS[0];
    let operations = played(step, &[]).0.operations();
    let mut needed = 0;
    for (at, operation) in operations.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map(|at| operations[at]);
        let created = operations[..at].iter().rposition(|operation| *operation == Operation::Create);
        let renamed = operations[..at].iter().rposition(|operation| *operation == Operation::Rename);
        let is_needed = match operation {
            Operation::SyncData => before(3) != Some(Operation::Rename) || created < Some(9),
            Operation::SyncAll => created > renamed,
            Operation::SyncDir => before(1) == Some(Operation::Rename),
            _ => false,
        };
        if !is_needed {
            continue;
        }
        needed += 1;
        let is_noticed = (at + 1..at + 12).any(|cut| {
            let (disk, known) = played(step, &[(at, Fault::LeftOut), (cut, Fault::Stop)]);
            (0..20).any(|outcome| known.check(&disk.after_power_cut(outcome), step).is_err())
        });
        assert!(is_noticed, "{operation:?}, operation {at} of {operations:?}");
    }
    assert!(needed > 20, "only {needed} syncs were left out");
}
