use ringfence_wire::{Holder, Key, Mode, Token};

use super::LeaseTable;
use crate::store::Lock;

/// What a reader outside of the cluster needs to know of a key to reject stale tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The key.
    pub key: Key,
    /// Every token below it is dead.
    pub fence: Token,
    /// The newest live token, its mode and its holder; `None` if nobody holds the key.
    pub newest: Option<(Token, Mode, Option<Holder>)>,
}

impl LeaseTable {
    /// The fence of `key`, and its newest holder.
    pub fn fence_on(&self, key: &Key) -> Fence {
        self.fence_of_lock(key, self.store.lock(key))
    }

    /// The fences of the first `at_most` keys after `after` that are held or waited for, in byte order.
    pub fn fences(&self, after: Option<&str>, at_most: usize) -> Vec<Fence> {
        let locks = self.store.locks("", after).take(at_most);
        locks.map(|(key, lock)| self.fence_of_lock(key, Some(lock))).collect()
    }

    fn fence_of_lock(&self, key: &Key, lock: Option<Lock<'_>>) -> Fence {
        let newest = lock.and_then(|lock| lock.holders().next_back());
        let newest =
            newest.map(|entry| (entry.number.into(), entry.mode, self.store.get(entry.slot).holder.clone()));
        Fence { key: key.clone(), fence: self.fence(key), newest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::make;
    use crate::{Acquire, Command};

    fn acquire(n: u128, keys: &[&str], mode: Mode, wait_ms: u32) -> Command {
        let keys = keys.iter().map(|name| (make::key(name), mode));
        let holder = Holder::new(&format!("holder {n}"));
        Acquire { holder, ..make::acquire(n, keys, wait_ms) }.into()
    }

    #[test]
    fn fences_are_listed_in_order_with_the_newest_holders() {
        let mut table = LeaseTable::new();
        let shared = Mode::Shared { limit: None };
        let commands = vec![
            acquire(1, &["b", "c"], Mode::Exclusive, 0),
            acquire(2, &["d"], shared, 0),
            acquire(3, &["d"], shared, 0),
            // It waits for b, and so is queued on a too, which nobody holds.
            acquire(4, &["a", "b"], Mode::Exclusive, 1_000),
        ];
        table.apply(0, commands, &mut Vec::new());
        let fence = |key: &str, fence, token, mode, holder: &str| Fence {
            key: make::key(key),
            fence: Token(fence),
            newest: Some((Token(token), mode, Holder::new(holder))),
        };
        let (b, c, d) = (
            fence("b", 1, 1, Mode::Exclusive, "holder 1"),
            fence("c", 1, 1, Mode::Exclusive, "holder 1"),
            fence("d", 2, 3, shared, "holder 3"),
        );
        let a = Fence { key: make::key("a"), fence: Token(5), newest: None };
        assert_eq!(table.fences(None, 10), [a.clone(), b.clone(), c.clone(), d.clone()]);
        assert_eq!(table.fences(None, 2), [a.clone(), b]);
        assert_eq!(table.fences(Some("b"), 2), [c, d]);
        assert_eq!(table.fences(Some("d"), 2), []);
        assert_eq!(table.fence_on(&a.key), a);
    }
}
