//! What is no snapshot is refused, and what passes for one is a table that works.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::script::{Script, scripts};
use super::stranger;
use crate::table::{LeaseTable, RestoreError};

/// Plays on with what bytes were restored to, if they were.
fn live_on(bytes: &[u8], script: &Script) -> Result<(), RestoreError> {
    let mut table = LeaseTable::restore(bytes)?;
    LeaseTable::restore(&table.snapshot()).expect("what was restored can be saved and restored");
    for entry in &script.entries {
        let commands = entry.wishes.iter().map(|wish| wish.at_revision(table.revision())).collect();
        table.apply(table.at_ms().saturating_add_signed(entry.step_ms), commands, &mut Vec::new());
    }
    // To the end of all leases, and of all time.
    while let Some(due_ms) = table.next_due_ms() {
        table.apply(due_ms, Vec::new(), &mut Vec::new());
    }
    table.apply(u64::MAX, Vec::new(), &mut Vec::new());
    assert_eq!(table.lease(stranger(), None), Err(crate::Refusal::Unknown));
    Ok(())
}

/// Tables as they are in the middle of a random history, with a history to come.
fn samples(count: usize) -> Vec<(Vec<u8>, Script)> {
    let mut runner = TestRunner::deterministic();
    let mut sample = || scripts().new_tree(&mut runner).expect("nothing is rejected").current();
    let mut samples = Vec::new();
    while samples.len() < count {
        let mut table = LeaseTable::default();
        for entry in sample().entries {
            let commands = entry.wishes.iter().map(|wish| wish.at_revision(table.revision())).collect();
            table.apply(table.at_ms().saturating_add_signed(entry.step_ms), commands, &mut Vec::new());
        }
        if table.live() > 1 && table.waiters() > 1 && table.remembered() > 1 {
            samples.push((table.snapshot(), sample()));
        }
    }
    samples
}

#[test]
fn a_snapshot_that_was_cut_short_or_lengthened_is_refused() {
    for (mut bytes, script) in samples(30) {
        for len in 0..bytes.len() {
            assert!(matches!(live_on(&bytes[..len], &script), Err(RestoreError::Malformed(_))), "{len}");
        }
        assert_eq!(live_on(&bytes, &script), Ok(()));
        bytes.push(0);
        assert!(live_on(&bytes, &script).is_err());
    }
}

#[test]
fn a_snapshot_with_flipped_bits_is_refused_or_makes_a_table_that_works() {
    let (mut refused, mut worked) = (0, 0);
    for (mut bytes, script) in samples(15) {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            match live_on(&bytes, &script) {
                Ok(()) => worked += 1,
                Err(_) => refused += 1,
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(refused > 1_000 && worked > 1_000, "{refused} were refused, {worked} worked");
}

#[test]
fn another_format_is_told_apart_from_damage() {
    let mut bytes = LeaseTable::default().snapshot();
    bytes[0] += 1;
    assert_eq!(LeaseTable::restore(&bytes).err(), Some(RestoreError::UnknownFormat { found: 2 }));
    assert!(matches!(LeaseTable::restore(&[1, 0, 0]), Err(RestoreError::Malformed(_))));
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200), with_format in any::<bool>()) {
        let mut bytes = bytes;
        if with_format {
            bytes.splice(0..0, [1, 0, 0, 0]);
        }
        prop_assert!(LeaseTable::restore(&bytes).is_err());
    }
}
