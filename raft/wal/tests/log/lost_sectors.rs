//! Sectors that never reached the disk, and sectors that are not where they belong.

use std::path::PathBuf;

use ringfence_wal::{Record, Wal};
use tempfile::TempDir;

use crate::support::{append, contents, folder, record, refusal, segments, sized, small, twenty};

const SECTORS: usize = 7;

/// Three flushes, the second or the third of them of `SECTORS` sectors; with the position of that one.
fn log(large_is_last: bool) -> (TempDir, PathBuf, Vec<u8>, usize, Vec<(u64, Record)>) {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [record(0)]);
    if !large_is_last {
        append(&wal, [record(0)]);
    }
    let start = 512 + wal.stats().bytes as usize;
    append(&wal, [sized(SECTORS * 489 - 40), sized(12)]);
    assert_eq!(wal.stats().bytes as usize, start - 512 + SECTORS * 512);
    if !large_is_last {
        append(&wal, [record(0)]);
    }
    drop(wal);
    let path = segments(dir.path()).remove(0);
    let bytes = std::fs::read(&path).unwrap();
    let records = contents(dir.path());
    (dir, path, bytes, start, records)
}

/// The bytes with these sectors of the flush not written, or only in part.
fn without(bytes: &[u8], start: usize, lost: usize, written_part: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for sector in (0..SECTORS).filter(|sector| lost >> sector & 1 == 1) {
        bytes[start + sector * 512 + written_part..][..512 - written_part].fill(0);
    }
    bytes
}

#[test]
fn any_unwritten_sectors_of_the_last_flush_are_a_torn_tail() {
    let (dir, path, bytes, start, records) = log(true);
    for written_part in [0, 1, 100, 511] {
        for lost in 1..1 << SECTORS {
            let left = without(&bytes, start, lost, written_part);
            std::fs::write(&path, &left).unwrap();
            let (wal, read) = Wal::open(dir.path(), small()).unwrap();
            assert_eq!(read, records[..1], "lost {lost:b}");
            let remains = left[start..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            assert_eq!(wal.stats().cut_bytes, remains.next_multiple_of(512) as u64, "lost {lost:b}");
            append(&wal, [record(5)]);
            drop(wal);
            assert_eq!(contents(dir.path()), [records[0].clone(), (2, record(5))], "lost {lost:b}");
        }
    }
}

#[test]
fn unwritten_sectors_of_a_flush_with_another_behind_it_are_damage() {
    let (dir, path, bytes, start, _) = log(false);
    for written_part in [0, 1, 100, 511] {
        for lost in 1..1 << SECTORS {
            let left = without(&bytes, start, lost, written_part);
            std::fs::write(&path, &left).unwrap();
            refusal(dir.path());
            assert_eq!(std::fs::read(&path).unwrap(), left, "a refused log is left as it is");
        }
    }
}

#[test]
fn a_damaged_sector_in_a_flush_that_was_cut_short_is_damage() {
    let (dir, path, bytes, start, _) = log(true);
    for lost in 1..1 << SECTORS {
        let mut left = without(&bytes, start, lost, 0);
        let whole = (0..SECTORS).find(|sector| lost >> sector & 1 == 0);
        let Some(whole) = whole else { continue };
        left[start + whole * 512 + 50] ^= 1;
        std::fs::write(&path, left).unwrap();
        assert_eq!(refusal(dir.path()).1 as usize, start + whole * 512, "lost {lost:b}");
    }
}

#[test]
fn any_lost_sector_before_the_last_flush_is_damage() {
    let (dir, ends) = twenty();
    let path = segments(dir.path()).remove(0);
    let bytes = std::fs::read(&path).unwrap();
    let last_start = ends[8].1 as usize;
    for at in (0..last_start).step_by(512) {
        let mut lost = bytes.clone();
        lost[at..at + 512].fill(0);
        std::fs::write(&path, lost).unwrap();
        refusal(dir.path());
    }
}

#[test]
fn any_sector_in_the_place_of_another_is_damage() {
    let (dir, ends) = twenty();
    let path = segments(dir.path()).remove(0);
    let bytes = std::fs::read(&path).unwrap();
    let sectors = ends.last().unwrap().1 as usize / 512;
    // One sector more: behind the end of the log.
    for to in 0..=sectors {
        for from in (0..sectors).filter(|from| *from != to) {
            let mut misplaced = bytes.clone();
            misplaced.copy_within(from * 512..from * 512 + 512, to * 512);
            std::fs::write(&path, misplaced).unwrap();
            refusal(dir.path());
        }
    }
}
