use std::fs;

use super::*;
use crate::disk::System;
use crate::flush::FlushBuffer;

const STEP: u32 = 8_192;

fn header(first_flush: u64, first_sequence: u64) -> Header {
    Header { log: 77, first_flush, first_sequence, step: STEP }
}

/// A directory with one segment for each header, with these flushes in it.
fn forged(segments: &[(Header, &[&[u8]])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (header, flushes) in segments {
        let mut bytes = header.encode().to_vec();
        flushes.iter().for_each(|flush| bytes.extend_from_slice(flush));
        bytes.resize(STEP as usize, 0);
        fs::write(dir::segment_path(dir.path(), header.first_sequence), bytes).unwrap();
    }
    dir
}

fn flush(number: u64, frames: &[(u16, u64, &[u8])]) -> Vec<u8> {
    let mut buffer = FlushBuffer::default();
    for (kind, sequence, payload) in frames {
        buffer.push(*kind, *sequence, payload);
    }
    buffer.seal(number, header(1, 1).seed()).to_vec()
}

fn open(dir: &Path) -> Result<(Segments, Records, u64), OpenError> {
    recover(&(Arc::new(System) as Arc<dyn Disk>), dir, Options::default())
}

fn refusal(dir: &Path) -> String {
    open(dir).err().expect("it must not open").to_string()
}

#[test]
fn a_forged_log_that_is_right_opens() {
    let dir = forged(&[
        (header(1, 1), &[&flush(1, &[(0, 1, b"a"), (1, 2, b"")]), &flush(4, &[(NOTE_ROLLED, 3, b"")])]),
        (header(5, 3), &[&flush(9, &[(255, 3, &[7; 900])])]),
    ]);
    let (log, records, _) = open(dir.path()).unwrap();
    assert_eq!((records.len(), log.next_sequence, log.next_flush), (3, 4, 10));
}

#[test]
fn a_record_out_of_sequence_is_damage() {
    for wrong in [0, 1, 3, u64::MAX] {
        let dir = forged(&[(header(1, 1), &[&flush(1, &[(0, 1, b"a"), (0, wrong, b"b")])])]);
        assert!(refusal(dir.path()).contains("expected 2"));
    }
}

#[test]
fn a_record_of_unknown_kind_and_one_that_is_cut_short_are_damage() {
    let dir = forged(&[(header(1, 1), &[&flush(1, &[(300, 1, b"a")])])]);
    assert!(refusal(dir.path()).contains("unknown kind 300"));
    let mut sectors = [[0; SECTOR]];
    sectors[0][crate::sector::HEAD..][..4].copy_from_slice(&1_000_u32.to_le_bytes());
    let place = crate::sector::Position { flush: 1, index: 0, count: 1 };
    crate::sector::seal_as(&mut sectors[0], place, 100, header(1, 1).seed());
    let dir = forged(&[(header(1, 1), &[&sectors[0]])]);
    assert!(refusal(dir.path()).contains("cut short"));
}

#[test]
fn an_incomplete_flush_in_a_segment_that_is_not_the_last_is_damage() {
    let torn = flush(2, &[(0, 2, &[1; 2_000])]);
    let next = flush(9, &[(0, 2, b"b")]);
    let dir =
        forged(&[(header(1, 1), &[&flush(1, &[(0, 1, b"a")]), &torn[..1_024]]), (header(8, 2), &[&next])]);
    assert!(refusal(dir.path()).contains("flush 2 is incomplete"));
}

#[test]
fn a_flush_behind_the_note_that_the_log_goes_on_is_damage() {
    let rolled = flush(2, &[(NOTE_ROLLED, 2, b"")]);
    let dir = forged(&[
        (header(1, 1), &[&flush(1, &[(0, 1, b"a")]), &rolled, &flush(3, &[(0, 2, b"b")])]),
        (header(4, 3), &[]),
    ]);
    assert!(refusal(dir.path()).contains("follows the end"));
}

#[test]
fn flush_numbers_that_fall_from_one_segment_to_the_next_are_damage() {
    let rolled = flush(7, &[(NOTE_ROLLED, 1, b"")]);
    let dir = forged(&[(header(1, 1), &[&flush(6, &[(0, 1, b"a")])]), (header(6, 2), &[])]);
    assert!(refusal(dir.path()).contains("expected one above 6"));
    let dir = forged(&[(header(8, 1), &[&rolled])]);
    assert!(refusal(dir.path()).contains("expected one above 7"));
}

#[test]
fn another_group_is_refused() {
    let mut bytes = header(1, 1).encode();
    bytes[14] = 3;
    crate::sector::seal(&mut bytes, 0);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir::segment_path(dir.path(), 1), bytes).unwrap();
    assert!(refusal(dir.path()).contains("group 3"));
}
