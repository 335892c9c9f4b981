use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ringfence_wire::{Key, Mode};

/// The keys of a lease and their modes, in the order of the request, none twice. Most leases have one key, which is
/// stored in place.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    One([(Key, Mode); 1]),
    Many(Arc<Vec<(Key, Mode)>>),
}

impl Keys {
    /// The HTTP API refuses a request that names a key twice. If a log entry does so, the first one counts.
    pub(crate) fn new(keys: Vec<(Key, Mode)>) -> Self {
        match <[(Key, Mode); 1]>::try_from(keys) {
            Ok(one) => Self::One(one),
            Err(mut many) => {
                let mut seen = BTreeSet::new();
                many.retain(|(key, _)| seen.insert(key.clone()));
                Self::Many(Arc::new(many))
            }
        }
    }

    /// Whether the other has the same keys, in any order and with any modes.
    pub(crate) fn same_keys(&self, other: &Self) -> bool {
        let in_order = |keys: &Self| keys.iter().map(|(key, _)| key.clone()).collect::<BTreeSet<_>>();
        self.len() == other.len()
            && (self.iter().zip(other.iter()).all(|(one, two)| one.0 == two.0)
                || in_order(self) == in_order(other))
    }
}

impl Deref for Keys {
    type Target = [(Key, Mode)];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl DerefMut for Keys {
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

    fn of(keys: &[&str]) -> Keys {
        Keys::new(keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive)).collect())
    }

    #[test]
    fn order_does_not_matter() {
        assert!(of(&["a", "b"]).same_keys(&of(&["b", "a"])));
        assert!(of(&["a"]).same_keys(&of(&["a"])));
        for other in [&["a"][..], &["a", "c"], &["a", "b", "c"], &[]] {
            assert!(!of(&["a", "b"]).same_keys(&of(other)), "{other:?}");
        }
    }

    #[test]
    fn a_duplicate_key_counts_once() {
        assert_eq!(of(&["a", "b", "a"]).len(), 2);
        assert_eq!(of(&["a", "a"]).len(), 1);
    }

    #[test]
    fn keys_are_small() {
        assert!(size_of::<Keys>() <= 16, "{}", size_of::<Keys>());
    }
}
