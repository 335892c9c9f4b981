//! A segment that ends too early: as a file, or in zeros.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ringfence_wal::disk::System;
use ringfence_wal::{OpenError, Options, Record, Wal};

use crate::support::{append, contents, copy, folder, record, refusal, segments, sized, small, twenty};

#[test]
#[ignore = "slow"]
fn zeros_from_any_byte_on_leave_whole_flushes_and_a_log_that_can_be_written() {
    let (dir, ends) = twenty();
    let expected = contents(dir.path());
    let used = ends.last().unwrap().1;
    let original = segments(dir.path()).remove(0);
    let bytes = std::fs::read(&original).unwrap();
    for cut in 512..used {
        let mut zeroed = bytes[..cut as usize].to_vec();
        zeroed.resize(bytes.len(), 0);
        std::fs::write(&original, &zeroed).unwrap();
        let read = ringfence_wal::read(&System, dir.path()).unwrap();
        assert!(std::fs::read(&original).unwrap() == zeroed, "reading changes nothing");
        let (wal, records) = Wal::open(dir.path(), small()).unwrap();
        assert_eq!(read, records);
        let &(count, end) = ends.iter().rfind(|(_, end)| *end <= cut).unwrap();
        assert_eq!(records, expected[..count], "zeros from byte {cut} on");
        // A checksum may begin with zeros.
        let left =
            bytes[..cut as usize].iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        let torn = left.saturating_sub(end).next_multiple_of(512);
        assert_eq!(wal.stats().cut_bytes, torn, "zeros from byte {cut} on");
        append(&wal, [record(1), sized(600)]);
        drop(wal);
        let after = contents(dir.path());
        assert_eq!(after[..count], expected[..count]);
        assert_eq!(after[count..], [(count as u64 + 1, record(1)), (count as u64 + 2, sized(600))]);
    }
}

/// The file is zeroed and synced ahead of its use: no crash can leave it shorter than that, so this is no
/// torn tail.
#[test]
fn a_file_that_ends_at_any_byte_of_the_used_part_is_refused() {
    let (dir, ends) = twenty();
    let file = File::options().write(true).open(segments(dir.path()).remove(0)).unwrap();
    let used = ends.last().unwrap().1;
    let length = file.metadata().unwrap().len();
    for cut in (0..used).rev().chain([used, length - 1]) {
        file.set_len(cut).unwrap();
        let (_, offset, _) = refusal(dir.path());
        assert!(offset <= cut, "cut at byte {cut}");
        if cut >= length - 1 {
            file.set_len(length).unwrap();
        }
    }
}

#[test]
fn a_file_of_many_steps_may_end_only_where_a_flush_and_a_step_end() {
    let dir = folder();
    let options = Options { step_bytes: 2_048, ..Options::default() };
    let (wal, _) = Wal::open(dir.path(), options).unwrap();
    let mut ends = vec![512];
    for size in [0, 10, 20, 600, 3, 1_300, 900, 30, 0, 2_000, 100, 5] {
        append(&wal, [sized(size)]);
        ends.push(512 + wal.stats().bytes);
    }
    drop(wal);
    let expected = contents(dir.path());
    let bytes = std::fs::read(segments(dir.path()).remove(0)).unwrap();
    let mut opened = 0;
    for cut in 0..*ends.last().unwrap() {
        let copy = copy(dir.path());
        File::options().write(true).open(segments(copy.path()).remove(0)).unwrap().set_len(cut).unwrap();
        // A checksum may begin with zeros: then this looks like a step that was being zeroed.
        let end = ends.iter().copied().rfind(|end| *end <= cut);
        let end = end.filter(|end| {
            end % 2_048 == 0 && bytes[*end as usize..cut as usize].iter().all(|byte| *byte == 0)
        });
        match (Wal::open(copy.path(), small()), end) {
            (Ok((_, records)), Some(end)) => {
                let flushes = ends.iter().position(|other| *other == end).unwrap();
                assert_eq!(records, expected[..flushes]);
                opened += 1;
            }
            (Err(OpenError::Damaged { .. }), None) => {}
            (result, _) => panic!(
                "cut at {cut}, flushes end at {ends:?}: {:?}",
                result.map(|(_, records)| records.len())
            ),
        }
    }
    assert!(opened >= 2, "{ends:?}");
}

/// A crash while the next step was being zeroed.
#[test]
fn a_last_step_that_was_not_completed_is_no_damage() {
    let (dir, ends) = twenty();
    let expected = contents(dir.path());
    let file = File::options().write(true).open(segments(dir.path()).remove(0)).unwrap();
    let length = file.metadata().unwrap().len();
    assert!(ends.last().unwrap().1 < length);
    for extra in [1, 511, 512, 5_000] {
        file.set_len(length + extra).unwrap();
        assert_eq!(contents(dir.path()), expected);
    }
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [sized(20_000)]);
    drop(wal);
    assert_eq!(contents(dir.path()).len(), 21);
}

#[test]
fn a_tail_that_was_cut_off_never_comes_back_behind_a_new_flush() {
    let (dir, ends) = twenty();
    let path = segments(dir.path()).remove(0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (start, end) = (ends[8].1, ends[9].1);
    assert_eq!(end - start, 3 * 512);
    let mut torn = vec![0; 3 * 512];
    file.read_exact_at(&mut torn, start).unwrap();
    // The last flush is cut off for want of its first sector, and a shorter one takes its place.
    file.write_all_at(&[0; 512], start).unwrap();
    let (wal, records) = Wal::open(dir.path(), small()).unwrap();
    assert_eq!((records.len(), wal.stats().cut_bytes), (18, 3 * 512));
    append(&wal, [record(0)]);
    assert_eq!(wal.stats().bytes, 512);
    drop(wal);
    assert_eq!(contents(dir.path()).len(), 19);
    // Had the disk not wiped it, it would be seen as what it is.
    file.write_all_at(&torn[512..], start + 512).unwrap();
    assert_eq!(refusal(dir.path()).1, start + 512);
}

/// The same, with the number of the flush: had the new flush the number of the one that was cut off, a
/// sector of the old could pass for one of the new.
#[test]
fn the_number_of_a_flush_that_was_cut_off_is_not_given_again() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [sized(1_200)]);
    drop(wal);
    let path = segments(dir.path()).remove(0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut old = [0; 512];
    file.read_exact_at(&mut old, 1_024).unwrap();
    file.write_all_at(&[0; 512], 512).unwrap();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [Record { kind: 1, payload: vec![9; 1_200].into() }]);
    drop(wal);
    file.write_all_at(&old, 1_024).unwrap();
    assert_eq!(refusal(dir.path()).1, 1_024);
}
