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

/// Each repeat walked over everybody ahead, in each of its queues: a thousand of them stopped all nodes for a minute.
#[test]
fn a_waiter_that_asks_again_costs_the_same_however_many_stand_ahead() {
    let steps_with = |waiters| {
        let mut table = queues_of(waiters, Mode::Exclusive);
        let last = (waiters - 9..=waiters).map(|n| acquire(n, 0..64, Mode::Exclusive)).collect();
        let (_, repeats) = steps_of(|| apply(&mut table, last));
        let (_, views) = steps_of(|| table.lease(id(waiters), None));
        (repeats, views)
    };
    let (few, many) = (steps_with(300), steps_with(3_000));
    assert_eq!(few, many);
    assert!(many.0 <= 10 * many.1, "{many:?}");
}
