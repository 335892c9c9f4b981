use std::fmt;
use std::marker::PhantomData;

use ringfence_wire::{Holder, Key, LeaseId, Token, Ttl};
use serde::{Deserialize, Deserializer, Serialize, de};

use super::Attachment;
use crate::Value;

/// Changes that are all made if all conditions hold, and otherwise none. They concern only leases with a [`Value`], which have one
/// exclusive key each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditional {
    #[serde(deserialize_with = "few")]
    conditions: Vec<(Key, Condition)>,
    #[serde(deserialize_with = "few")]
    changes: Vec<KeyChange>,
}

/// The state that a key must have before any of the changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// An acquire that tries once would get the key, exclusively.
    Free,
    /// It would not, and no lease of the requester with a value holds it.
    Taken,
    /// The lease with this token holds it. It is a lease of the requester with a value.
    Held {
        /// The token.
        token: Token,
        /// If set, the lease must have this deadline.
        until_ms: Option<u64>,
    },
}

/// A change of one key. A lease that it names must hold the key. It must be a lease of the requester with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyChange {
    /// Grants a new lease on this key alone, exclusively.
    Acquire {
        /// The key.
        key: Key,
        /// The handle of the new lease.
        lease_id: LeaseId,
        /// Its time-to-live.
        ttl: Ttl,
        /// Its value.
        value: Value,
        /// A public label.
        holder: Option<Holder>,
        /// Identifies this request for a later [`Command::TakeBack`](crate::Command::TakeBack).
        attachment: Attachment,
    },
    /// Keeps the lease from being taken back: its client knows it now.
    Keep {
        /// Its key.
        key: Key,
        /// Its token.
        token: Token,
    },
    /// Gives the lease this time-to-live from now on, which may be shorter than before. Keeps it from being taken back.
    Expire {
        /// Its key.
        key: Key,
        /// Its token.
        token: Token,
        /// Its new time-to-live.
        ttl: Ttl,
    },
    /// Ends the lease.
    End {
        /// Its key.
        key: Key,
        /// Its token.
        token: Token,
    },
}

impl Conditional {
    /// The most conditions, and the most changes.
    pub const MOST: usize = 64;

    /// `None` if there are more than [`Self::MOST`] of either.
    pub fn new(conditions: Vec<(Key, Condition)>, changes: Vec<KeyChange>) -> Option<Self> {
        let are_few = conditions.len() <= Self::MOST && changes.len() <= Self::MOST;
        are_few.then_some(Self { conditions, changes })
    }

    /// The conditions, each with its key.
    pub fn conditions(&self) -> &[(Key, Condition)] {
        &self.conditions
    }

    /// The changes, in their order.
    pub fn changes(&self) -> &[KeyChange] {
        &self.changes
    }

    /// The keys of the conditions and of the changes.
    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.conditions.iter().map(|(key, _)| key).chain(self.changes.iter().map(KeyChange::key))
    }

    pub(crate) fn into_changes(self) -> Vec<KeyChange> {
        self.changes
    }

    /// About how many bytes it takes in the log.
    pub fn size_hint(&self) -> usize {
        let change = |change: &KeyChange| match change {
            KeyChange::Acquire { value, holder, .. } => {
                48 + value.as_bytes().len() + holder.as_ref().map_or(0, |holder| holder.as_str().len())
            }
            KeyChange::Keep { .. } | KeyChange::Expire { .. } | KeyChange::End { .. } => 16,
        };
        let keys: usize = self.keys().map(|key| key.as_str().len() + 2).sum();
        keys + 16 * self.conditions.len() + self.changes.iter().map(change).sum::<usize>()
    }
}

impl KeyChange {
    /// The key that it changes.
    pub fn key(&self) -> &Key {
        match self {
            Self::Acquire { key, .. }
            | Self::Keep { key, .. }
            | Self::Expire { key, .. }
            | Self::End { key, .. } => key,
        }
    }

    /// The lease that it acquires, with its attachment.
    pub(crate) fn acquired(&self) -> Option<(LeaseId, Attachment)> {
        match self {
            Self::Acquire { lease_id, attachment, .. } => Some((*lease_id, *attachment)),
            Self::Keep { .. } | Self::Expire { .. } | Self::End { .. } => None,
        }
    }
}

/// Reads at most [`Conditional::MOST`] items. Reserves no memory for items that a message only announces.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct Visitor<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("at most 64")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(one) = seq.next_element()? {
                if all.len() == Conditional::MOST {
                    return Err(de::Error::custom("at most 64 conditions and 64 changes"));
                }
                all.push(one);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_seq(Visitor(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(conditions: usize, changes: usize) -> Option<Conditional> {
        let key = Key::new("a").unwrap();
        let end = KeyChange::End { key: key.clone(), token: Token(7) };
        Conditional::new(vec![(key, Condition::Free); conditions], vec![end; changes])
    }

    #[test]
    fn it_is_bounded_when_it_is_made_and_when_it_is_read() {
        let most = Conditional::MOST;
        assert!(of(most + 1, 0).is_none() && of(0, most + 1).is_none());
        let largest = of(most, most).unwrap();
        let bytes = postcard::to_stdvec(&largest).unwrap();
        assert_eq!(postcard::from_bytes::<Conditional>(&bytes).unwrap(), largest);
        for (conditions, changes) in [(most + 1, 0), (0, most + 1)] {
            let Conditional { conditions: mut many, changes: mut more } = largest.clone();
            many.resize(conditions, (Key::new("a").unwrap(), Condition::Taken));
            more.resize(changes, KeyChange::End { key: Key::new("a").unwrap(), token: Token(7) });
            let bytes = postcard::to_stdvec(&Conditional { conditions: many, changes: more }).unwrap();
            assert!(postcard::from_bytes::<Conditional>(&bytes).is_err());
        }
    }
}
