//! What is no snapshot is refused, and what passes for one is a table that works.

use std::borrow::Cow;
use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Revision, Ttl, Wait};

use super::script::{Script, scripts};
use super::snapshots::records_of;
use super::stranger;
use crate::ended::End;
use crate::puts::{Put, Puts};
use crate::table::{LeaseRecord, LeaseTable, Record, RestoreError, write_records};
use crate::{Acquire, Attachment, Command};

/// Plays on with what bytes were restored to, if they were.
fn live_on(bytes: &[u8], script: &Script) -> Result<(), RestoreError> {
    let mut table = LeaseTable::restore(bytes)?;
    LeaseTable::restore(&table.snapshot()[..]).expect("what was restored can be saved and restored");
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
        live_on(&bytes, &script).unwrap();
        bytes.push(0);
        assert!(live_on(&bytes, &script).is_err());
    }
}

#[test]
fn a_snapshot_with_flipped_bits_is_refused_or_makes_a_table_that_works() {
    let (mut refused, mut worked) = (0, 0);
    for (mut bytes, script) in samples(6) {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            match live_on(&bytes, &script) {
                Ok(()) => worked += 1,
                Err(_) => refused += 1,
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(refused > 500 && worked > 500, "{refused} were refused, {worked} worked");
}

#[test]
fn another_format_is_told_apart_from_damage() {
    let mut bytes = LeaseTable::default().snapshot();
    bytes[0] += 1;
    assert!(matches!(LeaseTable::restore(&bytes[..]), Err(RestoreError::UnknownFormat { found: 4 })));
    assert!(matches!(LeaseTable::restore(&[1, 0, 0][..]), Err(RestoreError::Malformed(_))));
}

/// A holds a, B waits for it, C and D ended.
fn small_table() -> Vec<Record<'static>> {
    let acquire = |id, ms| {
        Command::Acquire(Box::new(Acquire {
            lease_id: LeaseId::from_u128(id).unwrap(),
            claims: vec![(Key::new("a").unwrap(), Mode::Exclusive)],
            ttl: Ttl::default(),
            wait: Wait::from_ms(ms).unwrap(),
            keep_place: false,
            holder: None,
            metadata: Metadata::default(),
            attachment: Attachment(7),
        }))
    };
    let release = |id| Command::Release { lease_id: LeaseId::from_u128(id).unwrap() };
    let mut table = LeaseTable::default();
    table.apply(5, vec![acquire(1, 0), acquire(2, 1_000), release(3)], &mut Vec::new());
    table.apply(6, vec![release(4)], &mut Vec::new());
    records_of(&table)
}

#[test]
fn records_that_contradict_each_other_are_refused() {
    let refusal_of = |tamper: &dyn Fn(&mut Vec<Record<'_>>)| {
        let mut records = small_table();
        tamper(&mut records);
        let mut bytes = Vec::new();
        write_records(records, &mut bytes).unwrap();
        LeaseTable::restore(&bytes[..]).err().map(|error| error.to_string())
    };
    let lease = |index: usize, change: &dyn Fn(&mut LeaseRecord<'_>)| {
        refusal_of(&|records| match &mut records[index] {
            Record::Lease(lease) => change(lease),
            other => panic!("{other:?}"),
        })
    };
    let held_as = |modes: &[Mode; 2]| {
        refusal_of(&|records| {
            for (record, mode) in records[1..].iter_mut().zip(modes) {
                let Record::Lease(lease) = record else { panic!("{record:?}") };
                lease.waits_since_ms = None;
                lease.claims.to_mut()[0].1 = *mode;
            }
        })
    };
    let shared = |limit| Mode::Shared { limit };
    let lag =
        |place, key: &str| Record::Lag { place: Revision(place), key: Cow::Owned(Key::new(key).unwrap()) };
    let puts = |until: &[u64]| {
        let put = |&until_ms| Put { attachment: None, until_ms };
        Record::Puts(Cow::Owned(Puts::of(until.iter().map(put).collect())))
    };
    assert_eq!(refusal_of(&|_| {}), None);
    assert_eq!(refusal_of(&|records| records.insert(3, puts(&[1_005, 17]))), None);
    assert_eq!(held_as(&[shared(None), shared(NonZeroU32::new(2))]), None);
    for (refusal, words) in [
        (
            refusal_of(&|records| {
                records[0] = Record::Head { at_ms: 6, first_revision: Revision(0), revision: Revision(1) }
            }),
            "yet to come",
        ),
        (
            refusal_of(&|records| {
                records[0] = Record::Head { at_ms: 5, first_revision: Revision(0), revision: Revision(2) }
            }),
            "in time to come",
        ),
        (
            refusal_of(&|records| {
                records[0] =
                    Record::Head { at_ms: 6, first_revision: Revision(0), revision: Revision(1 << 60) }
            }),
            "out of range",
        ),
        (refusal_of(&|records| drop(records.remove(0))), "head"),
        (
            refusal_of(&|records| {
                records
                    .insert(1, Record::Head { at_ms: 6, first_revision: Revision(0), revision: Revision(2) })
            }),
            "head",
        ),
        (lease(1, &|lease| lease.number = Revision(0)), "yet to come"),
        (lease(1, &|lease| lease.number = Revision(2)), "by one change"),
        (lease(1, &|lease| lease.claims = [&lease.claims[..], &lease.claims].concat().into()), "a key twice"),
        (lease(1, &|lease| lease.claims.to_mut().clear()), "nothing is in its way"),
        (lease(2, &|lease| lease.waits_since_ms = None), "do not bear each other"),
        (held_as(&[Mode::Exclusive, shared(None)]), "do not bear each other"),
        (held_as(&[shared(None), Mode::Exclusive]), "do not bear each other"),
        (held_as(&[shared(NonZeroU32::new(1)), shared(None)]), "do not bear each other"),
        (lease(2, &|lease| lease.lease_id = LeaseId::from_u128(1).unwrap()), "order of their ids"),
        (lease(2, &|lease| lease.lease_id = LeaseId::from_u128(4).unwrap()), "has not ended"),
        (refusal_of(&|records| records.swap(1, 2)), "order of their ids"),
        (refusal_of(&|records| records.swap(3, 4)), "order of their ends"),
        (refusal_of(&|records| drop(records.remove(2))), "records are missing"),
        (refusal_of(&|records| drop(records.remove(3))), "records are missing"),
        (refusal_of(&|records| drop(records.pop())), "breaks off"),
        (
            refusal_of(&|records| {
                let end = End::TimedOut;
                records
                    .insert(5, Record::Ended { ended_ms: 6, lease_id: LeaseId::from_u128(3).unwrap(), end });
            }),
            "ended twice",
        ),
        (refusal_of(&|records| records.insert(2, puts(&[1_005, 2_000]))), "acquires stand"),
        (refusal_of(&|records| records.insert(3, puts(&[1_005, 2_000]))), "acquires stand"),
        (refusal_of(&|records| records.insert(3, puts(&[1_005]))), "acquires stand"),
        (refusal_of(&|records| records.insert(3, puts(&[1_005; 33]))), "acquires stand"),
        (refusal_of(&|records| records.insert(1, puts(&[1_005, 1]))), "acquires stand"),
        // The second waits because the first holds the key: it does not fit.
        (refusal_of(&|records| records.insert(5, lag(2, "a"))), "lags otherwise"),
        (refusal_of(&|records| records.insert(5, lag(1, "b"))), "lags otherwise"),
        (refusal_of(&|records| drop(records.splice(5..5, [lag(2, "a"), lag(3, "a")]))), "lags twice"),
        (
            refusal_of(&|records| drop(records.splice(5..5, [lag(2, "a"), lag(2, "a")]))),
            "order of their places",
        ),
    ] {
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains(words)), "{words}: {refusal:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200), with_format in any::<bool>()) {
        let mut bytes = bytes;
        if with_format {
            bytes.splice(0..0, [1, 0, 0, 0]);
        }
        prop_assert!(LeaseTable::restore(&bytes[..]).is_err());
    }
}
