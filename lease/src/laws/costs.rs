//! The cost of an entry depends on what its commands touch, and that of a view on what it shows, not on the size of the
//! table. These tests count steps with tables of two sizes.

use ringfence_wire::{Key, LeaseId, Mode, Token, Ttl};

use super::make::{self, id, key};
use crate::steps::steps_of;
use crate::{
    Attachment, Command, Condition, Conditional, Event, KeyChange, LeaseTable, Outcome, Refusal, Value,
};

fn nth_key(n: usize) -> Key {
    key(&format!("k{n}"))
}

fn lease_id(n: usize) -> LeaseId {
    id(n as u128 + 1)
}

fn acquire(n: usize, keys: impl IntoIterator<Item = usize>, mode: Mode) -> Command {
    make::acquire(n as u128 + 1, keys.into_iter().map(|n| (nth_key(n), mode)), 60_000).into()
}

fn apply(table: &mut LeaseTable, commands: Vec<Command>) -> (Vec<Outcome>, Vec<Event>) {
    let mut events = Vec::new();
    let outcomes = table.apply(table.at_ms(), commands, &mut events);
    (outcomes, events)
}

/// A lease holds 64 keys, and so many waiters wait for all of them.
fn queues_of(waiters: usize, mode: Mode) -> LeaseTable {
    let mut table = LeaseTable::new();
    let commands = (1..=waiters).map(|n| acquire(n, 0..64, mode));
    apply(&mut table, [acquire(0, 0..64, Mode::Exclusive)].into_iter().chain(commands).collect());
    assert_eq!((table.live(), table.waiters()), (1, waiters));
    table
}

fn readers_behind_a_writer(waiters: usize) -> LeaseTable {
    queues_of(waiters, Mode::Shared { limit: None })
}

/// When one entry granted all of them, 9,000 leases of 64 keys stopped every replica for half a second.
#[test]
#[ignore = "slow"]
fn a_release_costs_the_same_however_many_it_lets_in() {
    for (few, many) in [(200, 2_000), (2_000, 9_000)] {
        let steps_with = |waiters| {
            let mut table = readers_behind_a_writer(waiters);
            let ((_, events), steps) =
                steps_of(|| apply(&mut table, vec![Command::Release { lease_id: lease_id(0) }]));
            let keys: usize = events.iter().map(|event| event.keys.len()).sum();
            assert!(keys <= 4_096 + 2 * 64, "{keys} keys changed");
            steps
        };
        let (few, many) = (steps_with(few), steps_with(many));
        assert!(many <= few + few / 10, "{few} steps, {many} steps");
        assert!(many < 3 * 4_096, "{many}");
    }
}

/// The next entries grant the rest.
#[test]
fn all_are_granted_in_the_end_first_come_first_served() {
    let mut table = readers_behind_a_writer(1_000);
    let (_, mut events) = apply(&mut table, vec![Command::Release { lease_id: lease_id(0) }]);
    let mut entries = 1;
    while table.next_due_ms().is_some_and(|due_ms| due_ms <= table.at_ms()) {
        let (more, steps) = steps_of(|| apply(&mut table, Vec::new()).1);
        assert!(steps < 3 * 4_096, "{steps}");
        events.extend(more);
        entries += 1;
    }
    assert!(entries >= 1_000 * 64 / 4_096, "{entries}");
    assert_eq!((table.live(), table.waiters()), (1_000, 0));
    let granted = events[1..].iter().map(|event| event.lease_id);
    assert!(granted.eq((1..=1_000).map(lease_id)));
}

/// When ends were counted by leases, 4,096 of 64 keys took a quarter of a second.
#[test]
fn one_entry_ends_leases_of_so_many_keys() {
    let mut table = LeaseTable::new();
    apply(&mut table, (0..100).map(|n| acquire(n, n * 64..(n + 1) * 64, Mode::Exclusive)).collect());
    assert_eq!(table.live(), 100);
    let mut entries = 0;
    while table.live() > 0 {
        let (_, steps) = steps_of(|| table.apply(86_400_001, Vec::new(), &mut Vec::new()));
        assert!(steps <= 4_096 + 64, "{steps}");
        entries += 1;
    }
    assert_eq!(entries, 2);
}

/// When each repeat walked over all waiters ahead in each queue, a thousand repeats stopped all nodes for a minute.
#[test]
fn a_repeat_costs_the_same_however_many_wait_ahead() {
    let steps_with = |waiters| {
        let mut table = queues_of(waiters, Mode::Exclusive);
        let last = (waiters - 9..=waiters).map(|n| acquire(n, 0..64, Mode::Exclusive)).collect();
        let (_, repeats) = steps_of(|| apply(&mut table, last));
        let (_, views) =
            steps_of(|| (table.lease(None, lease_id(waiters), None), table.key(&nth_key(7), None)));
        (repeats, views)
    };
    let (few, many) = (steps_with(300), steps_with(3_000));
    assert_eq!(few, many);
    assert!(many.0 <= 10 * many.1, "{many:?}");
}

fn set(n: usize) -> KeyChange {
    KeyChange::Acquire {
        key: nth_key(n),
        lease_id: lease_id(n),
        ttl: Ttl::default(),
        value: Value::new(b"v").expect("it is short"),
        holder: None,
        attachment: Attachment(7),
    }
}

/// As many conditions and changes as one command may have, on keys that are set. The last change may fail.
fn conditional_of(table: &LeaseTable, last_fails: bool) -> Command {
    let most = Conditional::MOST;
    let held = |n| Condition::Held { token: table.fence(&nth_key(n)), until_ms: None };
    let end = |n| KeyChange::End { key: nth_key(n), token: table.fence(&nth_key(n)) };
    let mut changes: Vec<_> = (0..most).map(end).collect();
    if last_fails {
        changes[most - 1] = KeyChange::End { key: nth_key(most - 1), token: Token(u64::MAX) };
    }
    let conditions = (0..most).map(|n| (nth_key(n), held(n))).collect();
    Command::Conditional(Box::new(Conditional::new(conditions, changes).expect("they are few")))
}

#[test]
fn a_conditional_costs_what_it_touches() {
    let steps_with = |count: usize, last_fails| {
        let mut table = LeaseTable::new();
        table.raise_rules(4);
        for first in (0..count).step_by(Conditional::MOST) {
            let changes = (first..first + Conditional::MOST).map(set).collect();
            let conditional = Conditional::new(Vec::new(), changes).expect("they are few");
            apply(&mut table, vec![Command::Conditional(Box::new(conditional))]);
        }
        // No lease waits for these keys. Many wait for another one.
        let waiters =
            (count..2 * count).map(|n| make::acquire(n as u128 + 1, [(key("w"), Mode::Exclusive)], 60_000));
        apply(&mut table, waiters.map(Command::from).collect());
        let conditional = conditional_of(&table, last_fails);
        let ((outcomes, _), steps) = steps_of(|| apply(&mut table, vec![conditional]));
        match last_fails {
            true => assert_eq!(outcomes, [Outcome::Refused(Refusal::NotLive)]),
            false => assert_eq!(outcomes, [Outcome::Changed(Vec::new())]),
        }
        steps
    };
    for last_fails in [false, true] {
        let (few, many) = (steps_with(128, last_fails), steps_with(6_400, last_fails));
        assert_eq!(few, many);
        assert!(many <= 3 * Conditional::MOST, "{many}");
    }
}
