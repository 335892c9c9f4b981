//! A bad snapshot is refused, or makes a table that works.

use std::borrow::Cow;
use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use ringfence_wire::{Mode, PrincipalName, Revision};

use super::make::{self, id, key};
use super::script::{Script, scripts};
use super::snapshots::records_of;
use crate::requests::{Attempt, Requests};
use crate::store::End;
use crate::table::{LeaseRecord, LeaseTable, Record, RestoreError, write_records};
use crate::{Command, SUPPORTED, UnsupportedRules, Value};

/// Restores `bytes`, and plays on.
fn live_on(bytes: &[u8], script: &Script) -> Result<(), RestoreError> {
    let mut table = LeaseTable::restore(bytes, SUPPORTED)?;
    LeaseTable::restore(&table.snapshot()[..], SUPPORTED)
        .expect("a restored table can be saved and restored");
    for entry in &script.entries {
        let requests = script.requests(entry, &table);
        table.apply_requests(table.at_ms().saturating_add_signed(entry.step_ms), requests, &mut Vec::new());
    }
    // To the end of all leases, and of all time.
    while let Some(due_ms) = table.next_due_ms() {
        table.apply(due_ms, Vec::new(), &mut Vec::new());
    }
    table.apply(u64::MAX, Vec::new(), &mut Vec::new());
    assert_eq!(table.lease(None, id(u128::MAX), None), Err(crate::Refusal::Unknown));
    Ok(())
}

/// Tables from the middle of random histories, each with a history to go on.
fn samples(count: usize) -> Vec<(Vec<u8>, Script)> {
    let mut runner = TestRunner::deterministic();
    let mut sample = || scripts().new_tree(&mut runner).expect("nothing is rejected").current();
    let mut samples = Vec::new();
    while samples.len() < count {
        let mut table = LeaseTable::default();
        let script = sample();
        table.raise_rules(if samples.len() % 2 == 0 { SUPPORTED.newest } else { 1 });
        for entry in &script.entries {
            let requests = script.requests(entry, &table);
            table.apply_requests(
                table.at_ms().saturating_add_signed(entry.step_ms),
                requests,
                &mut Vec::new(),
            );
        }
        if table.live() > 1 && table.waiters() > 1 && table.remembered() > 1 {
            samples.push((table.snapshot(), sample()));
        }
    }
    samples
}

#[test]
#[ignore = "slow"]
fn a_truncated_or_lengthened_snapshot_is_refused() {
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
#[ignore = "slow"]
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
    assert!(refused > 500 && worked > 500, "{refused} refused, {worked} worked");
}

#[test]
fn another_format_is_not_reported_as_damage() {
    let refused = |format: u32| {
        let mut bytes = LeaseTable::default().snapshot();
        bytes[..4].copy_from_slice(&format.to_le_bytes());
        LeaseTable::restore(&bytes[..], SUPPORTED).unwrap_err()
    };
    for format in [0, 1, 300, u32::MAX] {
        assert!(
            matches!(refused(format), RestoreError::UnknownFormat { found } if found == format),
            "{format}"
        );
    }
    let newer = refused(3 + u32::from(SUPPORTED.newest));
    let RestoreError::Rules(UnsupportedRules { found, .. }) = newer else { panic!("{newer}") };
    assert_eq!(found, SUPPORTED.newest + 1);
    assert!(matches!(LeaseTable::restore(&[1, 0, 0][..], SUPPORTED), Err(RestoreError::Malformed(_))));
}

/// One lease holds the key, one waits for it, two ended.
fn small_table() -> Vec<Record<'static>> {
    let acquire = |n, wait_ms| make::acquire(n, [(key("a"), Mode::Exclusive)], wait_ms).into();
    let release = |n| Command::Release { lease_id: id(n) };
    let mut table = LeaseTable::default();
    table.apply(5, vec![acquire(1, 0), acquire(2, 1_000), release(3)], &mut Vec::new());
    table.apply(6, vec![release(4)], &mut Vec::new());
    records_of(&table)
}

#[test]
fn records_that_contradict_each_other_are_refused() {
    let refusal_under = |rules, tamper: &dyn Fn(&mut Vec<Record<'_>>)| {
        let mut records = small_table();
        tamper(&mut records);
        let mut bytes = Vec::new();
        write_records(rules, records, &mut bytes).unwrap();
        LeaseTable::restore(&bytes[..], SUPPORTED).err().map(|error| error.to_string())
    };
    let refusal_of = |tamper: &dyn Fn(&mut Vec<Record<'_>>)| refusal_under(1, tamper);
    // Its leases are the waiter and what ended.
    let owner = |name: &str| Record::Owner(Cow::Owned(PrincipalName::new(name).unwrap()));
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
                lease.keys.to_mut()[0].1 = *mode;
            }
        })
    };
    let head = |at_ms, first, revision| Record::Head {
        at_ms,
        first_revision: Revision(first),
        revision: Revision(revision),
    };
    let shared = |limit| Mode::Shared { limit };
    let value = || Record::Value(Cow::Owned(Value::new(b"secret").unwrap()));
    let refusal_with_value = |rules, place| refusal_under(rules, &|records| records.insert(place, value()));
    let ready = |place, key: &str| Record::Ready { place: Revision(place), key: Cow::Owned(make::key(key)) };
    let requests = |until: &[u64]| {
        let request = |&until_ms| Attempt { attachment: None, until_ms };
        Record::Requests(Cow::Owned(Requests::of(until.iter().map(request).collect())))
    };
    assert_eq!(refusal_of(&|_| {}), None);
    assert_eq!(refusal_under(2, &|records| records.insert(2, owner("ann"))), None);
    assert_eq!(refusal_under(2, &|records| drop(records.splice(4..4, [owner("ann")]))), None);
    assert_eq!(refusal_of(&|records| records.insert(3, requests(&[1_005, 17]))), None);
    assert_eq!(refusal_with_value(4, 2), None);
    assert_eq!(held_as(&[shared(None), shared(NonZeroU32::new(2))]), None);
    for (refusal, words) in [
        (refusal_of(&|records| records[0] = head(6, 0, 1)), "yet to come"),
        (refusal_of(&|records| records[0] = head(5, 0, 2)), "in time to come"),
        (refusal_of(&|records| records[0] = head(6, 0, 1 << 60)), "out of range"),
        (refusal_of(&|records| drop(records.remove(0))), "head"),
        (refusal_of(&|records| records.insert(1, head(6, 0, 2))), "head"),
        (lease(1, &|lease| lease.number = Revision(0)), "yet to come"),
        (lease(1, &|lease| lease.number = Revision(2)), "by one change"),
        (lease(1, &|lease| lease.keys = [&lease.keys[..], &lease.keys].concat().into()), "a key twice"),
        (lease(1, &|lease| lease.keys.to_mut().clear()), "nothing blocks it"),
        (lease(2, &|lease| lease.waits_since_ms = None), "not compatible"),
        (held_as(&[Mode::Exclusive, shared(None)]), "not compatible"),
        (held_as(&[shared(None), Mode::Exclusive]), "not compatible"),
        (held_as(&[shared(NonZeroU32::new(1)), shared(None)]), "not compatible"),
        (lease(2, &|lease| lease.lease_id = id(1)), "order of their ids"),
        (lease(2, &|lease| lease.lease_id = id(4)), "both active and ended"),
        (refusal_of(&|records| records.swap(1, 2)), "order of their ids"),
        (refusal_of(&|records| records.swap(3, 4)), "order of their ends"),
        (refusal_of(&|records| drop(records.remove(2))), "records are missing"),
        (refusal_of(&|records| drop(records.remove(3))), "records are missing"),
        (refusal_of(&|records| drop(records.pop())), "truncated"),
        (
            refusal_of(&|records| {
                let end = End::TimedOut;
                records.insert(5, Record::Ended { ended_ms: 6, lease_id: id(3), end });
            }),
            "ended twice",
        ),
        (refusal_with_value(3, 2), "before there were any"),
        (refusal_with_value(4, 1), "cannot have one"),
        (refusal_with_value(4, 3), "cannot have one"),
        (refusal_under(4, &|records| drop(records.splice(2..2, [value(), value()]))), "cannot have one"),
        (
            refusal_under(4, &|records| {
                let Record::Lease(lease) = &mut records[1] else { panic!("{records:?}") };
                lease.keys.to_mut().push((key("b"), Mode::Exclusive));
                records.insert(2, value());
            }),
            "cannot have one",
        ),
        (
            refusal_under(4, &|records| {
                let Record::Lease(lease) = &mut records[1] else { panic!("{records:?}") };
                lease.keys.to_mut()[0].1 = shared(None);
                records.insert(2, value());
            }),
            "cannot have one",
        ),
        (refusal_of(&|records| records.insert(2, owner("ann"))), "before there were any"),
        (refusal_under(2, &|records| records.insert(5, owner("ann"))), "has nothing"),
        (
            refusal_under(2, &|records| drop(records.splice(2..2, [owner("ann"), owner("bob")]))),
            "has nothing",
        ),
        (
            refusal_under(2, &|records| {
                records.insert(2, owner("bob"));
                records.insert(4, owner("ann"));
            }),
            "order of their names",
        ),
        (refusal_of(&|records| records.insert(2, requests(&[1_005, 2_000]))), "requests belong"),
        (refusal_of(&|records| records.insert(3, requests(&[1_005, 2_000]))), "requests belong"),
        (refusal_of(&|records| records.insert(3, requests(&[1_005]))), "requests belong"),
        (refusal_of(&|records| records.insert(3, requests(&[1_005; 33]))), "requests belong"),
        (refusal_of(&|records| records.insert(1, requests(&[1_005, 1]))), "requests belong"),
        // The second waits because the first holds the key.
        (refusal_of(&|records| records.insert(5, ready(2, "a"))), "not ready as it must be"),
        (refusal_of(&|records| records.insert(5, ready(1, "b"))), "not ready as it must be"),
        (refusal_of(&|records| drop(records.splice(5..5, [ready(2, "a"), ready(3, "a")]))), "ready twice"),
        (
            refusal_of(&|records| drop(records.splice(5..5, [ready(2, "a"), ready(2, "a")]))),
            "order of their places",
        ),
    ] {
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains(words)), "{words}: {refusal:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200), format in option::of(3..=6_u8)) {
        let mut bytes = bytes;
        if let Some(format) = format {
            bytes.splice(0..0, [format, 0, 0, 0]);
        }
        prop_assert!(LeaseTable::restore(&bytes[..], SUPPORTED).is_err());
    }
}
