//! Segments as files: rolling, missing, mixed up, forgotten.

use std::env;
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_wal::{OpenError, Options, Record, Wal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::support::{self, append, contents, copy, folder, record, refusal, segments, sized, small};

/// A log of at least five segments, none of which holds more than a few records.
fn rolled() -> (TempDir, Vec<(u64, Record)>) {
    let dir = folder();
    write(dir.path(), 120);
    let records = contents(dir.path());
    assert_eq!(records.len(), 120);
    assert!(segments(dir.path()).len() >= 5);
    (dir, records)
}

fn write(dir: &Path, records: u64) {
    let (wal, _) = Wal::open(dir, small()).unwrap();
    for number in 0..records {
        append(&wal, [record(number)]);
    }
}

fn first_sequence(path: &Path) -> u64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

#[test]
fn a_log_of_many_segments_is_read_and_written_on() {
    let (dir, mut records) = rolled();
    for segment in segments(dir.path()) {
        assert!(fs::metadata(segment).unwrap().len() <= small().segment_bytes);
    }
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    records.push((append(&wal, [record(9)]), record(9)));
    drop(wal);
    assert_eq!(contents(dir.path()), records);
}

#[test]
fn a_flush_larger_than_a_segment_has_one_of_its_own() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let records = [record(1), sized(100_000), record(2), sized(50_000)];
    for record in records.clone() {
        append(&wal, [record]);
    }
    drop(wal);
    assert_eq!(segments(dir.path()).len(), 4);
    assert!(contents(dir.path()).into_iter().map(|(_, record)| record).eq(records));
}

#[test]
fn a_log_can_be_opened_with_other_sizes() {
    let (dir, records) = rolled();
    let (wal, read) = Wal::open(dir.path(), Options::default()).unwrap();
    assert_eq!(read, records);
    append(&wal, [sized(100_000)]);
    drop(wal);
    assert_eq!(contents(dir.path()).len(), 121);
}

#[test]
fn any_missing_segment_is_damage_the_first_and_the_last_too() {
    let (dir, _) = rolled();
    for missing in 0..segments(dir.path()).len() {
        let copy = copy(dir.path());
        fs::remove_file(&segments(copy.path())[missing]).unwrap();
        let (_, _, what) = refusal(copy.path());
        assert!(what.contains("missing"), "{what}");
    }
}

#[test]
fn swapped_segments_are_damage() {
    let (dir, _) = rolled();
    let count = segments(dir.path()).len();
    for (one, other) in (0..count).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let copy = copy(dir.path());
        let files = segments(copy.path());
        let (one, other) = (&files[one], &files[other]);
        let bytes = fs::read(one).unwrap();
        fs::copy(other, one).unwrap();
        fs::write(other, bytes).unwrap();
        let (file, offset, _) = refusal(copy.path());
        assert_eq!((file.as_str(), offset), (other.file_name().unwrap().to_str().unwrap(), 0));
    }
}

#[test]
fn a_second_copy_of_a_segment_and_one_under_another_name_are_damage() {
    let (dir, _) = rolled();
    for segment in segments(dir.path()) {
        for shift in [1, 2, 100_000] {
            let name = dir.path().join(format!("{:020}.wal", first_sequence(&segment) + shift));
            if !name.exists() {
                fs::copy(&segment, &name).unwrap();
                refusal(dir.path());
                fs::remove_file(&segment).unwrap();
                refusal(dir.path());
                fs::rename(&name, &segment).unwrap();
            }
        }
    }
    contents(dir.path());
}

#[test]
fn a_file_that_is_no_segment_is_refused_and_an_unfinished_segment_is_removed() {
    let (dir, records) = rolled();
    for name in ["LOCK", "1.wal", "00000000000000000001.wal.old", "+0000000000000000001.wal"] {
        let foreign = dir.path().join(name);
        fs::write(&foreign, b"").unwrap();
        match Wal::open(dir.path(), small()) {
            Err(OpenError::Foreign { path }) => assert_eq!(path, foreign),
            _ => panic!("{name} was accepted"),
        }
        fs::remove_file(foreign).unwrap();
    }
    let unfinished = dir.path().join("segment.tmp");
    fs::write(&unfinished, b"half a head").unwrap();
    assert_eq!(contents(dir.path()), records);
    assert!(!unfinished.exists());
}

#[test]
fn the_segment_of_another_log_is_damage_even_if_it_holds_the_same() {
    let (dir, _) = rolled();
    let (other, _) = rolled();
    for (ours, theirs) in segments(dir.path()).iter().zip(segments(other.path())) {
        let bytes = fs::read(ours).unwrap();
        fs::copy(&theirs, ours).unwrap();
        refusal(dir.path());
        // And so are its sectors behind a header of this one.
        let mixed = [&bytes[..512], &fs::read(theirs).unwrap()[512..]].concat();
        fs::write(ours, mixed).unwrap();
        refusal(dir.path());
        fs::write(ours, bytes).unwrap();
    }
}

#[test]
fn an_earlier_segment_that_ends_too_early_is_damage() {
    let (dir, _) = rolled();
    let files = segments(dir.path());
    for segment in &files[..files.len() - 1] {
        let bytes = fs::read(segment).unwrap();
        for kept in (512..bytes.len()).step_by(256) {
            // As a file.
            fs::write(segment, &bytes[..kept]).unwrap();
            refusal(dir.path());
            // In zeros, unless there were only zeros, or nothing but the note that the log goes on.
            let is_data =
                bytes[kept..].chunks(512).filter(|chunk| chunk.iter().any(|byte| *byte != 0)).count() > 1;
            if is_data {
                let mut zeroed = bytes[..kept].to_vec();
                zeroed.resize(bytes.len(), 0);
                fs::write(segment, zeroed).unwrap();
                refusal(dir.path());
            }
        }
        fs::write(segment, bytes).unwrap();
    }
}

/// The program ended after making a segment and before noting so in the one before.
#[test]
fn a_segment_that_was_made_and_never_announced_is_taken_back() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let mut before = Vec::new();
    while segments(dir.path()).len() == 1 {
        before = fs::read(&segments(dir.path())[0]).unwrap();
        append(&wal, [record(13)]);
    }
    drop(wal);
    let files = segments(dir.path());
    let mut bytes = fs::read(&files[1]).unwrap();
    bytes[512..].fill(0);
    fs::write(&files[0], before).unwrap();
    fs::write(&files[1], bytes).unwrap();
    let (wal, records) = Wal::open(dir.path(), small()).unwrap();
    assert_eq!(records.len() as u64 + 1, first_sequence(&files[1]));
    assert_eq!(segments(dir.path()), files[..1]);
    append(&wal, [sized(3_000)]);
    append(&wal, [record(14)]);
    drop(wal);
    assert_eq!(contents(dir.path()).len(), records.len() + 2);
    // Now it is announced, and its loss is seen.
    fs::remove_file(segments(dir.path()).last().unwrap()).unwrap();
    assert!(refusal(dir.path()).2.contains("missing"));
}

#[test]
fn forgetting_deletes_whole_old_segments_only() {
    let (dir, records) = rolled();
    let starts: Vec<u64> = segments(dir.path()).iter().map(|path| first_sequence(path)).collect();
    for before in 0..=records.len() as u64 + 1 {
        let copy = copy(dir.path());
        let (wal, _) = Wal::open(copy.path(), small()).unwrap();
        wal.forget(before);
        drop(wal);
        let kept = starts.iter().rposition(|start| *start <= before).unwrap_or(0);
        let left: Vec<u64> = segments(copy.path()).iter().map(|path| first_sequence(path)).collect();
        assert_eq!(left[0], starts[kept], "before {before}");
        assert_eq!(contents(copy.path()), records[starts[kept] as usize - 1..], "before {before}");
    }
}

/// The later note once said that less was given up, and the log did not open again.
#[test]
fn what_is_forgotten_stays_forgotten_whatever_is_asked_next() {
    let (dir, records) = rolled();
    let starts: Vec<u64> = segments(dir.path()).iter().map(|path| first_sequence(path)).collect();
    // Some of these calls share a flush, as the flusher has it.
    for _ in 0..20 {
        let copy = copy(dir.path());
        let (wal, _) = Wal::open(copy.path(), small()).unwrap();
        for before in [starts[2], starts[1], starts[2], starts[1]] {
            wal.forget(before);
        }
        drop(wal);
        assert_eq!(contents(copy.path()), records[starts[2] as usize - 1..]);
    }
}

#[test]
fn after_forgetting_a_missing_segment_is_still_damage() {
    let (dir, _) = rolled();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    wal.forget(first_sequence(&segments(dir.path())[2]));
    drop(wal);
    contents(dir.path());
    let files: Vec<PathBuf> = segments(dir.path());
    let bytes = fs::read(&files[0]).unwrap();
    fs::remove_file(&files[0]).unwrap();
    let (_, _, what) = refusal(dir.path());
    assert!(what.contains("missing"), "{what}");
    fs::write(&files[0], bytes).unwrap();
    contents(dir.path());
}

#[test]
fn what_was_appended_again_before_forgetting_outlives_the_segment_it_stood_in() {
    let dir = folder();
    let vote = Record { kind: 200, payload: b"vote"[..].into() };
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [vote.clone()]);
    for number in 0..100 {
        append(&wal, [record(number)]);
    }
    wal.append([vote.clone()], None);
    wal.forget(support::append(&wal, [record(1)]));
    drop(wal);
    assert!(contents(dir.path()).iter().any(|(_, record)| *record == vote));
    assert!(contents(dir.path())[0].0 > 1);
}

/// Segments are named by their first record: one that held nothing but the note about what was forgotten
/// was once overwritten by the next.
#[test]
fn a_segment_without_a_record_is_not_followed_by_one_of_the_same_name() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    // Two segments, and no room in the second for the note.
    append(&wal, [sized(12_000)]);
    append(&wal, [sized(489 * 30 - 14)]);
    assert_eq!(segments(dir.path()).len(), 2);
    wal.forget(2);
    append(&wal, [sized(15_900)]);
    append(&wal, [record(4)]);
    drop(wal);
    assert!(contents(dir.path()).iter().map(|(sequence, _)| *sequence).eq(2..=4));
}

const LACKING: &str = "LOG_LACKS_DESCRIPTORS";

/// A process without a spare descriptor once lost its log, and so its node, when a segment was full. In a process of its
/// own, because the limit holds for a whole process.
#[test]
fn a_log_goes_on_without_descriptors_and_in_a_new_segment_when_there_are_some() {
    let test = "segments::lacks_descriptors_for_a_while";
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(LACKING, "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The other half of the test above.
#[test]
fn lacks_descriptors_for_a_while() {
    if env::var_os(LACKING).is_none() {
        return;
    }
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let put = |numbers: Range<u64>| {
        for number in numbers {
            append(&wal, [record(number)]);
        }
    };
    put(0..60);
    let before = segments(dir.path());
    assert!(before.len() >= 3);
    let all = getrlimit(Resource::Nofile);
    // With one, a file can be made that cannot be opened a second time; with none, nothing.
    let next = fs::File::open(dir.path()).unwrap().as_raw_fd() as u64;
    for limit in [next + 1, 0] {
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), ..all }).unwrap();
        put(60..120);
    }
    wal.forget(first_sequence(&before[1]));
    put(120..121);
    let deleted = || !before[0].exists();
    while !deleted() {
        std::thread::yield_now();
    }
    setrlimit(Resource::Nofile, all).unwrap();
    let mut without = segments(dir.path());
    // One that was not completed does not count.
    without.retain(|path| path.extension().unwrap() == "wal");
    assert_eq!(without, before[1..]);
    put(121..180);
    assert!(segments(dir.path()).len() >= without.len() + 2);
    wal.close().unwrap();
    let numbers: Vec<u64> = contents(dir.path()).iter().map(|(_, record)| support::number(record)).collect();
    let expected: Vec<u64> = (0..120).chain(60..180).collect();
    assert!(expected.ends_with(&numbers) && numbers.len() > 180, "{numbers:?}");
}
