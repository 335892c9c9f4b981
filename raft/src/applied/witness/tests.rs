use ringfence_lease::{Acquire, Attachment, Command, Condition, Conditional, KeyChange, Value};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};

use super::*;
use crate::consensus::log_id;

/// What the entries of a log do that start the numbering at these revisions: only the first counts.
fn witness(revisions: impl IntoIterator<Item = u64>) -> Witness {
    let (mut witness, mut table) = (Witness::default(), LeaseTable::new());
    for (index, revision) in revisions.into_iter().enumerate() {
        let mut events = Vec::new();
        let start = Command::Start { revision: Revision(revision) };
        let outcomes = table.apply(index as u64, vec![start], &mut events);
        witness.note(&outcomes, &events, &table);
        witness.end_entry(log_id(1, index as u64));
    }
    witness
}

#[test]
fn a_difference_is_the_same_wherever_a_node_began_and_another_if_one_entry_did_something_else() {
    let whole = witness([7; 9]);
    let mut late = witness([7; 4]);
    late.start_after(Some(log_id(1, 3)));
    let mut table = LeaseTable::new();
    table.apply(3, vec![Command::Start { revision: Revision(7) }], &mut Vec::new());
    for index in 4..9 {
        let outcomes = table.apply(index, vec![Command::Start { revision: Revision(7) }], &mut Vec::new());
        late.note(&outcomes, &[], &table);
        late.end_entry(log_id(1, index));
    }
    assert_eq!((late.applied(), whole.applied()), (9, 9));
    let from_four = whole.difference(4, 9).unwrap();
    assert_eq!(late.difference(4, 9), Some(from_four));
    assert_eq!(late.difference(0, 9), Some(from_four), "it knows no more");
    assert_ne!(whole.difference(0, 9), Some(from_four));

    assert_ne!(witness([8; 9]).difference(4, 9).unwrap().sum, from_four.sum);
    for (after, upto, expected) in [(9, 9, true), (5, 10, false), (9, 8, false), (0, 3, false)] {
        assert_eq!(late.difference(after, upto).is_some(), expected, "({after}, {upto}]");
    }
}

fn acquire(lease: u128, key: &str, mode: Mode, wait_ms: u32, keep_place: bool) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: id(lease),
        claims: vec![(Key::new(key).unwrap(), mode)],
        ttl: Ttl::from_ms(10_000).unwrap(),
        wait: Wait::from_ms(wait_ms).unwrap(),
        keep_place,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(1),
    }))
}

fn id(lease: u128) -> LeaseId {
    LeaseId::from_u128(lease).unwrap()
}

/// Nodes of different versions compare these sums: what entries under rules 1 add to them must not change.
#[test]
fn what_is_hashed_under_the_first_rules_is_fixed() {
    let shared = Mode::Shared { limit: std::num::NonZeroU32::new(2) };
    let entries = [
        (1, vec![Command::Start { revision: Revision(1_000) }]),
        (2, vec![acquire(1, "a", Mode::Exclusive, 0, false), acquire(2, "a", Mode::Exclusive, 0, false)]),
        (3, vec![acquire(1, "a", Mode::Exclusive, 0, false), acquire(3, "a", shared, 50, true)]),
        (4, vec![acquire(3, "a", shared, 0, false), acquire(1, "b", shared, 0, false)]),
        (5, vec![acquire(4, "a", shared, 100, false), Command::Renew { lease_id: id(1), ttl: None }]),
        (
            6,
            vec![
                Command::Renew { lease_id: id(4), ttl: None },
                Command::Renew { lease_id: id(9), ttl: None },
            ],
        ),
        (7, vec![Command::Release { lease_id: id(1) }, Command::Release { lease_id: id(8) }]),
        (8, vec![Command::Revoke { key: Key::new("a").unwrap(), token: Token(7) }]),
        (9, vec![acquire(5, "c", Mode::Exclusive, 0, false), acquire(6, "c", Mode::Exclusive, 1, false)]),
        (90, vec![Command::Detach { lease_id: id(5), attachment: Attachment(1) }]),
        (99_999, vec![acquire(6, "c", Mode::Exclusive, 0, false), acquire(1, "a", shared, 0, false)]),
    ];
    let (mut witness, mut table) = (Witness::default(), LeaseTable::new());
    for (index, (at_ms, commands)) in (0..).zip(entries) {
        let mut events = Vec::new();
        let outcomes = table.apply(at_ms, commands, &mut events);
        witness.note(&outcomes, &events, &table);
        witness.end_entry(log_id(2, index));
    }
    assert_eq!(witness.difference(0, 11), Some(Difference { after: 0, sum: 10_956_448_086_983_680_467 }));
}

fn conditional(conditions: Vec<(Key, Condition)>, changes: Vec<KeyChange>) -> Vec<Command> {
    vec![Command::Conditional(Box::new(Conditional::new(conditions, changes).unwrap()))]
}

/// The same for the commands that are new in rules 4.
#[test]
fn what_is_hashed_of_a_conditional_is_fixed() {
    let key = |name| Key::new(name).unwrap();
    let set = |lease: u128, name| KeyChange::Acquire {
        key: key(name),
        lease_id: id(lease),
        ttl: Ttl::from_ms(10_000).unwrap(),
        value: Value::new(b"value").unwrap(),
        holder: None,
        attachment: Attachment(1),
    };
    let end = |token| KeyChange::End { key: key("a"), token: Token(token) };
    let entries = [
        conditional(vec![(key("a"), Condition::Free)], vec![set(1, "a"), set(2, "b")]),
        conditional(vec![(key("a"), Condition::Free)], Vec::new()),
        conditional(Vec::new(), vec![set(3, "a")]),
        conditional(Vec::new(), vec![end(1), set(4, "a")]),
        conditional(Vec::new(), vec![end(1)]),
    ];
    let (mut witness, mut table) = (Witness::default(), LeaseTable::new());
    table.raise_rules(4);
    for (index, commands) in (0..).zip(entries) {
        let mut events = Vec::new();
        let outcomes = table.apply(index, commands, &mut events);
        witness.note(&outcomes, &events, &table);
        witness.end_entry(log_id(2, index));
    }
    assert_eq!(witness.difference(0, 5), Some(Difference { after: 0, sum: 736_034_013_143_326_916 }));
}

/// They are of a few seconds of a busy cluster.
#[test]
fn only_the_latest_sums_are_kept() {
    let mut witness = Witness::default();
    let most = MOST as u64;
    for index in 0..2 * most {
        witness.end_entry(log_id(1, index));
    }
    assert_eq!(witness.sums.len(), MOST);
    assert_eq!(witness.difference(0, 2 * most).unwrap().after, most + 1);
    assert_eq!(witness.difference(0, most), None);
}

/// All nodes of a busy cluster drop their oldest sums at about the same time.
#[test]
fn nodes_whose_sums_are_full_compare_though_one_is_ahead() {
    let (mut behind, mut ahead) = (Witness::default(), Witness::default());
    for index in 0..MOST as u64 + 10 {
        behind.end_entry(log_id(1, index));
        ahead.end_entry(log_id(1, index));
    }
    let (from, upto) = (behind.comparable_from(), behind.applied());
    for index in upto..upto + 3 {
        ahead.end_entry(log_id(1, index));
    }
    let theirs = ahead.difference(from, upto).unwrap();
    assert!(theirs.after == from && upto - from > MOST as u64 / 2, "{theirs:?}");
    assert_eq!(behind.difference(from, upto), Some(theirs));
}
