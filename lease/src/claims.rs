use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ringfence_wire::{Key, Mode};

/// The keys that a lease wants and how, in the order they were asked for, none twice. Most leases have one: it lies
/// in the lease itself.
#[derive(Clone, Debug)]
pub(crate) enum Claims {
    One([(Key, Mode); 1]),
    Many(Arc<Vec<(Key, Mode)>>),
}

impl Claims {
    /// The door refuses a request that names a key twice. Should a log entry do so, the first claim stands.
    pub(crate) fn new(claims: Vec<(Key, Mode)>) -> Self {
        match <[(Key, Mode); 1]>::try_from(claims) {
            Ok(one) => Self::One(one),
            Err(mut many) => {
                let mut seen = BTreeSet::new();
                many.retain(|(key, _)| seen.insert(key.clone()));
                Self::Many(Arc::new(many))
            }
        }
    }

    /// Whether the other has the same keys, in whatever order and modes.
    pub(crate) fn same_keys(&self, other: &Self) -> bool {
        let in_order = |claims: &Self| claims.iter().map(|(key, _)| key.clone()).collect::<BTreeSet<_>>();
        self.len() == other.len()
            && (self.iter().zip(other.iter()).all(|(one, two)| one.0 == two.0)
                || in_order(self) == in_order(other))
    }
}

impl Deref for Claims {
    type Target = [(Key, Mode)];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl DerefMut for Claims {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::One(one) => one,
            Self::Many(many) => Arc::make_mut(many).as_mut_slice(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(keys: &[&str]) -> Claims {
        Claims::new(keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive)).collect())
    }

    #[test]
    fn the_same_keys_are_the_same_in_any_order() {
        assert!(claims(&["a", "b"]).same_keys(&claims(&["b", "a"])));
        assert!(claims(&["a"]).same_keys(&claims(&["a"])));
        for other in [&["a"][..], &["a", "c"], &["a", "b", "c"], &[]] {
            assert!(!claims(&["a", "b"]).same_keys(&claims(other)), "{other:?}");
        }
    }

    #[test]
    fn a_key_that_is_named_twice_is_claimed_once() {
        assert_eq!(claims(&["a", "b", "a"]).len(), 2);
        assert_eq!(claims(&["a", "a"]).len(), 1);
    }

    #[test]
    fn the_common_lease_needs_no_list_of_its_own() {
        assert!(size_of::<Claims>() <= 16, "{}", size_of::<Claims>());
    }
}
