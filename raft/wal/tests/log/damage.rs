//! Any damage, in several places.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use ringfence_wal::{OpenError, Wal};

use crate::support::{contents, copy, segments, small, twenty};

/// Bytes that are overwritten from a place on, or how many of them become zeros.
fn damage() -> impl Strategy<Value = (Index, Vec<u8>)> {
    let zeros = (1..3_000_usize).prop_map(|count| vec![0; count]);
    (any::<Index>(), prop_oneof![vec(any::<u8>(), 1..40), zeros])
}

#[test]
fn whatever_is_damaged_no_record_is_made_up() {
    let (dir, ends) = twenty();
    let expected = contents(dir.path());
    let used = ends.last().unwrap().1 as usize;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    });
    let all = (vec(damage(), 1..4), prop::option::weighted(0.2, any::<Index>()));
    let tried = runner.run(&all, |(damages, cut)| {
        let copy = copy(dir.path());
        let path = segments(copy.path()).remove(0);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, new) in damages {
            let at = at.index(used);
            let end = bytes.len().min(at + new.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        match Wal::open(copy.path(), small()) {
            Ok((_, records)) => prop_assert!(expected.starts_with(&records), "{} records", records.len()),
            Err(OpenError::Damaged { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
        Ok(())
    });
    tried.unwrap();
}
