use ringfence_lease::Command;
use ringfence_wire::Revision;

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
