//! An entry costs what its commands touch, and a view what it shows, whatever state there is. What could be otherwise is
//! tried here with states of two sizes, and the steps are counted.

use ringfence_wire::{Key, LeaseId, Metadata, Mode, Ttl, Wait};

use crate::steps::steps_of;
use crate::{Acquire, Attachment, Command, Event, LeaseTable, Outcome};

fn id(n: usize) -> LeaseId {
    LeaseId::from_u128(n as u128 + 1).unwrap()
}

fn key(n: usize) -> Key {
    Key::new(&format!("k{n}")).unwrap()
}

fn acquire(n: usize, keys: impl IntoIterator<Item = usize>, mode: Mode) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: id(n),
        claims: keys.into_iter().map(|n| (key(n), mode)).collect(),
        ttl: Ttl::default(),
        wait: Wait::from_ms(60_000).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(n as u64),
    }))
}

fn apply(table: &mut LeaseTable, commands: Vec<Command>) -> (Vec<Outcome>, Vec<Event>) {
    let mut events = Vec::new();
    let outcomes = table.apply(table.at_ms(), commands, &mut events);
    (outcomes, events)
}

/// A lease holds 64 keys, and so many wait for all of them.
fn queues_of(waiters: usize, mode: Mode) -> LeaseTable {
    let mut table = LeaseTable::new();
    let commands = (1..=waiters).map(|n| acquire(n, 0..64, mode));
    apply(&mut table, [acquire(0, 0..64, Mode::Exclusive)].into_iter().chain(commands).collect());
    assert_eq!((table.live(), table.waiters()), (1, waiters));
    table
}

/// All who wait for a key: they wait for the other 63 no more.
fn readers_behind_a_writer(waiters: usize) -> LeaseTable {
    queues_of(waiters, Mode::Shared { limit: None })
}

/// One release granted all of them in one entry: 9,000 leases of 64 keys stopped every replica for half a second.
#[test]
fn a_release_costs_the_same_however_many_it_lets_in() {
    for (few, many) in [(200, 2_000), (2_000, 9_000)] {
        let steps_with = |waiters| {
            let mut table = readers_behind_a_writer(waiters);
            let ((_, events), steps) =
                steps_of(|| apply(&mut table, vec![Command::Release { lease_id: id(0) }]));
            let keys: usize = events.iter().map(|event| event.keys.len()).sum();
            assert!(keys <= 4_096 + 2 * 64, "{keys} keys changed");
            steps
        };
        let (few, many) = (steps_with(few), steps_with(many));
        assert!(many <= few + few / 10, "{few} steps, {many} steps");
        assert!(many < 3 * 4_096, "{many}");
    }
}

/// What is left over goes on with the next entries, until all are granted.
#[test]
fn all_are_granted_in_the_end_first_come_first() {
    let mut table = readers_behind_a_writer(1_000);
    let (_, mut events) = apply(&mut table, vec![Command::Release { lease_id: id(0) }]);
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
    assert!(granted.eq((1..=1_000).map(id)));
}

/// Ends were counted by leases: 4,096 of 64 keys took a quarter of a second.
#[test]
fn what_ends_at_one_time_ends_in_entries_of_so_many_keys() {
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

/// Each repeat walked over everybody ahead, in each of its queues: a thousand of them stopped all nodes for a minute.
#[test]
fn a_waiter_that_asks_again_costs_the_same_however_many_stand_ahead() {
    let steps_with = |waiters| {
        let mut table = queues_of(waiters, Mode::Exclusive);
        let last = (waiters - 9..=waiters).map(|n| acquire(n, 0..64, Mode::Exclusive)).collect();
        let (_, repeats) = steps_of(|| apply(&mut table, last));
        let (_, views) = steps_of(|| (table.lease(id(waiters), None), table.key(&key(7), None)));
        (repeats, views)
    };
    let (few, many) = (steps_with(300), steps_with(3_000));
    assert_eq!(few, many);
    assert!(many.0 <= 10 * many.1, "{many:?}");
}
