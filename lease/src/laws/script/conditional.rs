//! Random conditionals. Most of their conditions hold, and most of their changes can be done, in the table at the time.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringfence_wire::{Key, LeaseId, PrincipalName, Token, Ttl};

use super::{IDS, KEYS, MOST_IDS};
use crate::laws::make::key;
use crate::{Attachment, Condition, Conditional, Found, KeyChange, LeaseTable, Value};

#[derive(Clone, Debug)]
pub(in crate::laws) struct Drawn {
    conditions: Vec<(Key, Say)>,
    changes: Vec<Change>,
}

/// A condition to make for a key.
#[derive(Clone, Copy, Debug)]
enum Say {
    Free,
    Taken,
    /// Held, with a token that is the first number below that of the holder. The second number, if any, is added to the deadline.
    Held(u64, Option<u64>),
    /// A condition that holds.
    Truth,
}

#[derive(Clone, Debug)]
struct Change {
    kind: Kind,
    key: Key,
    /// How far the token is below that of the holder.
    back: u64,
    lease_id: LeaseId,
    ttl: Ttl,
    value: Value,
    attachment: Attachment,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Acquire,
    Keep,
    Expire,
    End,
    /// The following acquire the key, unless the requester has it. Then they expire it, end it, or end and acquire it.
    AcquireOrExpire,
    AcquireOrEnd,
    AcquireAnyhow,
}

pub(super) fn drawn() -> impl Strategy<Value = Drawn> {
    let back = || prop_oneof![5 => Just(0), 1 => 1..4_u64];
    let any_key = || select(&[KEYS[0], KEYS[1], KEYS[2], KEYS[3], KEYS[3], KEYS[3]][..]).prop_map(key);
    let say = prop_oneof![
        8 => Just(Say::Truth),
        1 => Just(Say::Free),
        1 => Just(Say::Taken),
        2 => (back(), select(vec![None, Some(0), Some(0), Some(1)])).prop_map(|(back, later)| Say::Held(back, later)),
    ];
    let kind = prop_oneof![
        2 => Just(Kind::Acquire),
        1 => Just(Kind::Keep),
        1 => Just(Kind::Expire),
        1 => Just(Kind::End),
        4 => Just(Kind::AcquireOrExpire),
        2 => Just(Kind::AcquireOrEnd),
        3 => Just(Kind::AcquireAnyhow),
    ];
    // Few of these ids are in acquires, as an ended id is not granted again for long.
    let id = prop_oneof![1 => 1..=IDS, 6 => IDS + 1..=MOST_IDS];
    let ttl = select(vec![100, 400, 2_000, 2_000]);
    let change = (kind, any_key(), back(), id, ttl, select(vec!["", "v", "value"]), 0..3_u64);
    let change = change.prop_map(|(kind, key, back, id, ttl, value, attachment)| Change {
        kind,
        key,
        back,
        lease_id: LeaseId::from_u128(id).unwrap(),
        ttl: Ttl::from_ms(ttl).unwrap(),
        value: Value::new(value.as_bytes()).unwrap(),
        attachment: Attachment(attachment),
    });
    let conditions = prop_oneof![2 => Just(0), 2 => Just(1), 1 => Just(2)];
    let changes = prop_oneof![1 => Just(0), 6 => Just(1), 3 => Just(2), 1 => Just(3)];
    (conditions, changes)
        .prop_flat_map(move |(conditions, changes)| {
            (vec((any_key(), say.clone()), conditions), vec(change.clone(), changes))
        })
        .prop_map(|(conditions, changes)| Drawn { conditions, changes })
}

impl Drawn {
    /// The conditional of `by`, for `table` as it is.
    pub(super) fn played(&self, by: Option<&PrincipalName>, table: &LeaseTable) -> Conditional {
        let found = |key: &Key| table.found(by, key, 0);
        let condition = |(key, say): &(Key, Say)| {
            let condition = match (say, found(key)) {
                (Say::Free, _) | (Say::Truth, Found::Free) => Condition::Free,
                (Say::Taken, _) | (Say::Truth, Found::Taken { .. }) => Condition::Taken,
                (Say::Truth, Found::Own { token, until_ms, .. }) => {
                    Condition::Held { token, until_ms: Some(until_ms) }
                }
                (Say::Held(back, later), found) => {
                    let end_ms = if let Found::Own { until_ms, .. } = found { until_ms } else { 0 };
                    let token = Token(table.fence(key).0.saturating_sub(*back));
                    Condition::Held { token, until_ms: later.map(|later_ms| end_ms + later_ms) }
                }
            };
            (key.clone(), condition)
        };
        let change = |change: &Change| {
            let Change { kind, key, back, lease_id, ttl, value, attachment } = change.clone();
            let is_own = matches!(found(&key), Found::Own { .. });
            let token = Token(table.fence(&key).0.saturating_sub(back));
            let end = KeyChange::End { key: key.clone(), token };
            let acquire =
                KeyChange::Acquire { key: key.clone(), lease_id, ttl, value, holder: None, attachment };
            match kind {
                Kind::AcquireOrExpire if is_own => vec![KeyChange::Expire { key, token, ttl }],
                Kind::AcquireOrEnd if is_own => vec![end],
                Kind::AcquireAnyhow if is_own => vec![end, acquire],
                Kind::Keep => vec![KeyChange::Keep { key, token }],
                Kind::Expire => vec![KeyChange::Expire { key, token, ttl }],
                Kind::End => vec![end],
                _ => vec![acquire],
            }
        };
        let conditions = self.conditions.iter().map(condition).collect();
        Conditional::new(conditions, self.changes.iter().flat_map(change).collect()).unwrap()
    }
}
