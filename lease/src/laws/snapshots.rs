//! What a view writes, and what a table is restored from.

use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::thread;

use ringfence_wire::{Holder, Metadata, Mode, PrincipalName, RulesRange, Ttl};

use super::make::{acquire, id, key};
use crate::table::{FrozenTable, LeaseTable, Record, RecordReader, RestoreError};
use crate::{
    Acquire, Attachment, Command, Conditional, Found, KeyChange, Outcome, Owner, Quota, Request, SUPPORTED,
    Value,
};

pub(super) fn bytes_of(view: &FrozenTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    view.write_to(&mut bytes).unwrap();
    bytes
}

/// The records of a snapshot of `table`.
pub(super) fn records_of(table: &LeaseTable) -> Vec<Record<'static>> {
    let bytes = table.snapshot();
    let mut reader = RecordReader::new(&bytes[4..]);
    let mut records = vec![reader.next().unwrap()];
    while !matches!(records.last(), Some(Record::Tail { .. })) {
        records.push(reader.next().unwrap());
    }
    records
}

/// Leases that each hold a key.
fn leases(ids: impl Iterator<Item = u128>) -> Vec<Command> {
    ids.map(|n| acquire(n, [(key(&format!("accounts/{n}")), Mode::Exclusive)], 0).into()).collect()
}

/// A table with some of everything: metadata, a holder, modes, a waiter, ended ids.
fn some_of_everything() -> LeaseTable {
    let mut table = LeaseTable::default();
    let mode = |limit| Mode::Shared { limit: NonZeroU32::new(limit) };
    let metadata = [("job", "7"), ("host", "ä")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let first = Acquire {
        holder: Holder::new("ann"),
        metadata: Metadata::new(metadata.into()).unwrap(),
        ..acquire(3, [(key("b"), mode(0)), (key("a/b"), mode(300))], 0)
    };
    let second = acquire(2, [(key("c"), Mode::Exclusive)], 0);
    let third = Acquire { keep_place: true, ..acquire(1 << 127, [(key("b"), Mode::Exclusive)], 60_000) };
    let acquires = [first, second, third].map(Command::from);
    table.apply(1_000, acquires.into(), &mut Vec::new());
    table.apply(2_000, vec![Command::Renew { lease_id: id(2), ttl: None }], &mut Vec::new());
    let in_vain = acquire(8, [(key("c"), Mode::Exclusive)], 1);
    table.apply(3_000, vec![in_vain.into()], &mut Vec::new());
    table.apply(4_000, vec![Command::Release { lease_id: id(9) }], &mut Vec::new());
    table
}

const FORMAT_2: &str = "02000000";
const FORMAT_3: &str = "03000000";

fn in_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn the_format_is_fixed() {
    let table = some_of_everything();
    let records = [
        "00a01f0005",
        "01100000000000000000000000000000000201016300987500000002e8840100",
        "011000000000000000000000000000000003020162010003612f620101ac0298750103616e6e0204686f737402c3a4036a6f620137010701807d00",
        "0110800000000000000000000000000000000101620098750000010703d0830401e807",
        "02a01f100000000000000000000000000000000800",
        "02a01f10000000000000000000000000000000090100",
        "030302",
    ]
    .concat();
    assert_eq!(in_hex(&table.snapshot()), FORMAT_3.to_owned() + &records);
    let older = LeaseTable::restore(&of_hex(&(FORMAT_2.to_owned() + &records))[..], SUPPORTED).unwrap();
    assert_eq!(older.snapshot(), table.snapshot());
}

/// Programs that support several rules tell by its format which rules a snapshot is under.
#[test]
fn a_snapshot_keeps_the_rules_and_only_a_program_that_supports_them_reads_it() {
    let supported = RulesRange { oldest: 1, newest: 2 };
    let mut table = some_of_everything();
    let first = table.snapshot();
    for (rules, expected) in [(1, 1), (2, 2), (1, 2), (2, 2)] {
        table.raise_rules(rules);
        assert_eq!(table.rules(), expected);
    }
    let second = table.snapshot();
    assert_eq!((&first[..4], &second[..4]), (&[3, 0, 0, 0][..], &[4, 0, 0, 0][..]));
    assert_eq!(first[4..], second[4..]);
    let restored = LeaseTable::restore(&second[..], supported).unwrap();
    assert_eq!((restored.rules(), restored.snapshot()), (2, second.clone()));
    assert_eq!(LeaseTable::restore(&first[..], supported).unwrap().rules(), 1);

    let refused = |bytes: &[u8], oldest, newest| {
        LeaseTable::restore(bytes, RulesRange { oldest, newest }).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&second, 1, 1),
        "this cluster uses rules 2, and this program supports rules 1 to 1: start the version of ringfence that the other \
         members run, or a newer one"
    );
    assert_eq!(
        refused(&first, 2, 3),
        "this cluster uses rules 1, and this program supports rules 2 to 3: start an older version of ringfence, and raise \
         the rules there before the upgrade"
    );
}

#[test]
fn owners_are_in_the_format() {
    let mut table = LeaseTable::default();
    table.raise_rules(2);
    let of = |name: &str, commands: Vec<Command>| {
        let owner = Owner { name: PrincipalName::new(name).unwrap(), quota: Quota::default() };
        Request { by: Some(owner), commands }
    };
    let one = |n: u128, name: &str| acquire(n, [(key(name), Mode::Exclusive)], 0).into();
    let requests = vec![
        of("zoe", vec![one(1, "a")]),
        of("ann", vec![one(2, "b"), one(1, "c"), Command::Release { lease_id: id(7) }]),
        vec![one(1, "d")].into(),
    ];
    table.apply_requests(1, requests, &mut Vec::new());
    let records = [
        "04000000 00010004",
        "0110 00000000000000000000000000000001 01016400 9875 00 00 0107 04 9975 00",
        "06 03616e6e",
        "0110 00000000000000000000000000000001 01016300 9875 00 00 0107 03 9975 00",
        "0110 00000000000000000000000000000002 01016200 9875 00 00 0107 02 9975 00",
        "0201 10 00000000000000000000000000000007 0100",
        "06 037a6f65",
        "0110 00000000000000000000000000000001 01016100 9875 00 00 0107 01 9975 00",
        "030401",
    ];
    assert_eq!(in_hex(&table.snapshot()), records.concat().replace(' ', ""));
    let restored = LeaseTable::restore(&table.snapshot()[..], SUPPORTED).unwrap();
    assert_eq!(restored.snapshot(), table.snapshot());
    let ann = PrincipalName::new("ann").unwrap();
    assert!(restored.lease(Some(&ann), id(2), None).is_ok() && restored.lease(None, id(2), None).is_err());
}

#[test]
fn values_are_in_the_format() {
    let mut table = LeaseTable::default();
    table.raise_rules(4);
    let set = |n, name, value: &[u8]| KeyChange::Acquire {
        key: key(name),
        lease_id: id(n),
        ttl: Ttl::default(),
        value: Value::new(value).unwrap(),
        holder: None,
        attachment: Attachment(7),
    };
    let longest = [b'v'; Value::MAX_BYTES];
    let changes = vec![set(1, "a", b"\xff\x00"), set(2, "b", b""), set(3, "c", &longest)];
    let conditional = Conditional::new(Vec::new(), changes).unwrap();
    let outcomes = table.apply(1, vec![Command::Conditional(Box::new(conditional))], &mut Vec::new());
    assert!(matches!(&outcomes[..], [Outcome::Changed(grants)] if grants.len() == 3));
    let records = [
        "06000000 00010003",
        "0110 00000000000000000000000000000001 01016100 9875 00 00 0107 01 9975 00",
        "0702ff00",
        "0110 00000000000000000000000000000002 01016200 9875 00 00 0107 02 9975 00",
        "0700",
        "0110 00000000000000000000000000000003 01016300 9875 00 00 0107 03 9975 00",
        "078008",
        &in_hex(&longest),
        "030300",
    ];
    assert_eq!(in_hex(&table.snapshot()), records.concat().replace(' ', ""));
    // Also byte by byte, as a record is read that does not fit the buffer.
    let snapshot = table.snapshot();
    let restored =
        LeaseTable::restore(Trickle { bytes: &snapshot, pause: false, fails: false }, SUPPORTED).unwrap();
    assert_eq!((restored.snapshot(), restored.bytes()), (snapshot, table.bytes()));
    let found = restored.found(None, &key("a"), 1);
    assert!(matches!(found, Found::Own { value, .. } if value.as_bytes() == b"\xff\x00"));
}

#[test]
fn ready_keys_are_in_the_format() {
    let key = || key("a");
    let mut table = LeaseTable::default();
    table.limits.grants = 1;
    let readers = (2..5).map(|n| acquire(n, vec![(key(), Mode::Shared { limit: None })], 60_000));
    let acquires = [acquire(1, vec![(key(), Mode::Exclusive)], 0)].into_iter().chain(readers);
    table.apply(1, acquires.map(Command::from).collect(), &mut Vec::new());
    table.apply(2, vec![Command::Release { lease_id: id(1) }], &mut Vec::new());
    assert_eq!((table.live(), table.waiters()), (1, 2));
    let ready = "04030161";
    assert!(in_hex(&table.snapshot()).ends_with(&(ready.to_owned() + "030301")));
    let mut restored = LeaseTable::restore(&table.snapshot()[..], SUPPORTED).unwrap();
    assert_eq!(restored.snapshot(), table.snapshot());
    restored.apply(2, Vec::new(), &mut Vec::new());
    assert_eq!((restored.live(), restored.waiters(), restored.next_due_ms()), (3, 0, Some(15_003)));
}

#[test]
fn requests_of_a_waiter_are_in_the_format() {
    let key = || [(key("a"), Mode::Exclusive)];
    let mut table = LeaseTable::default();
    let second = Acquire { attachment: Attachment(8), ..acquire(2, key(), 300) };
    let acquires = [acquire(1, key(), 0), acquire(2, key(), 60_000), second];
    table.apply(1, acquires.map(Command::from).into(), &mut Vec::new());
    let requests = "050201 07e1d403 0108b529".replace(' ', "");
    assert!(in_hex(&table.snapshot()).ends_with(&(requests + "030200")), "{}", in_hex(&table.snapshot()));
    let mut restored = LeaseTable::restore(&table.snapshot()[..], SUPPORTED).unwrap();
    assert_eq!(restored.snapshot(), table.snapshot());
    let detach = |attachment| Command::Detach { lease_id: id(2), attachment: Attachment(attachment) };
    restored.apply(2, vec![detach(7)], &mut Vec::new());
    assert_eq!((restored.waiters(), restored.next_due_ms()), (1, Some(5_302)));
    restored.apply(2, vec![detach(8)], &mut Vec::new());
    assert_eq!(restored.waiters(), 0);
}

#[test]
fn another_thread_writes_a_view_while_the_table_goes_on() {
    let mut table = LeaseTable::default();
    table.apply(1, leases(1..=2_000), &mut Vec::new());
    let (view, before) = (table.freeze(), table.snapshot());
    assert_eq!((view.at_ms(), view.revision(), view.live()), (1, table.revision(), 2_000));
    let writing = thread::spawn(move || (0..20).map(|_| bytes_of(&view)).collect::<Vec<_>>());
    for n in 1..=200 {
        let release = |m| Command::Release { lease_id: id(n * 10 + m) };
        let mut commands: Vec<Command> = (0..5).map(release).collect();
        commands.extend((5..9).map(|m| Command::Renew { lease_id: id(n * 10 + m), ttl: None }));
        commands.extend(leases(10_000 + n * 10..10_005 + n * 10));
        table.apply(1 + n as u64, commands, &mut Vec::new());
    }
    assert!(writing.join().unwrap().iter().all(|bytes| *bytes == before));
    assert_ne!(table.snapshot(), before);
}

#[test]
fn a_failing_writer_fails_the_snapshot() {
    /// Fails once, after so many bytes.
    struct FullAt(usize);
    impl Write for FullAt {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self.0.min(bytes.len());
            self.0 = if written == 0 { usize::MAX } else { self.0 - written };
            if written == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(written) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut table = LeaseTable::default();
    table.apply(1, leases(1..=5_000), &mut Vec::new());
    let len = table.snapshot().len();
    assert!(len > 200_000);
    for room in [0, 1, 65_536, 100_000, len - 1] {
        let error = table.freeze().write_to(&mut FullAt(room)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{room}");
    }
    table.freeze().write_to(&mut FullAt(len)).unwrap();
}

/// Gives one byte at a time, with interrupts in between, and then ends or fails.
struct Trickle<'a> {
    bytes: &'a [u8],
    pause: bool,
    fails: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.pause = !self.pause;
        if self.pause {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let Some((place, &byte)) = room.first_mut().zip(self.bytes.split_off_first()) else {
            return if self.fails { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(0) };
        };
        *place = byte;
        Ok(1)
    }
}

#[test]
fn a_source_may_give_single_bytes() {
    let mut large = LeaseTable::default();
    large.apply(1, leases(1..=9_000), &mut Vec::new());
    for table in [LeaseTable::default(), some_of_everything(), large] {
        let bytes = table.snapshot();
        let restored =
            LeaseTable::restore(Trickle { bytes: &bytes, pause: false, fails: false }, SUPPORTED).unwrap();
        assert_eq!(restored.snapshot(), bytes);
    }
}

#[test]
fn a_failing_source_is_not_reported_as_damage() {
    let bytes = some_of_everything().snapshot();
    for len in 0..=bytes.len() {
        let error =
            LeaseTable::restore(Trickle { bytes: &bytes[..len], pause: false, fails: true }, SUPPORTED)
                .unwrap_err();
        let RestoreError::Unreadable(error) = error else { panic!("{len}: {error}") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_lease_of_more_keys_than_the_api_allows_is_saved_and_restored() {
    let keys = (0..3_000).map(|n| (key(&format!("{n:0>512}")), Mode::Exclusive));
    let mut table = LeaseTable::default();
    table.apply(1, leases(1..=3), &mut Vec::new());
    let outcomes = table.apply(2, vec![acquire(9, keys, 0).into()], &mut Vec::new());
    assert!(matches!(outcomes[..], [Outcome::Granted(_)]));
    table.apply(3, leases(10..=1_000), &mut Vec::new());
    let bytes = table.snapshot();
    assert_eq!(LeaseTable::restore(&bytes[..], SUPPORTED).unwrap().snapshot(), bytes);
}
