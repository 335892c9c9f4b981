use ringfence_wire::{Holder, Key, Mode, Token};

use super::LeaseTable;
use crate::line::Line;

/// What a reader outside of the cluster needs to know of a key, to reject by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Of this key.
    pub key: Key,
    /// Every token below it is dead.
    pub fence: Token,
    /// The newest live token, and how and by whom it is held; `None` where nobody holds the key.
    pub newest: Option<(Token, Mode, Option<Holder>)>,
}

impl LeaseTable {
    /// The fence of `key`, and who holds it.
    pub fn fence_on(&self, key: &Key) -> Fence {
        self.fence_of_line(key, self.line(key))
    }

    /// The fences of the first `at_most` keys that are held or waited for and come after `after`, in the order of their
    /// bytes; none after the last.
    pub fn fences(&self, after: Option<&str>, at_most: usize) -> Vec<Fence> {
        self.lines
            .range("", after, &self.leases)
            .take(at_most)
            .map(|(key, line)| self.fence_of_line(key, Some(line)))
            .collect()
    }

    fn fence_of_line(&self, key: &Key, line: Option<Line<'_>>) -> Fence {
        let newest = line.and_then(Line::newest).map(|claim| {
            let lease = self.leases.get(claim.slot);
            (claim.number.into(), claim.mode, lease.holder.clone())
        });
        Fence { key: key.clone(), fence: self.fence(key), newest }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{LeaseId, Metadata, Ttl, Wait};

    use super::*;
    use crate::{Acquire, Attachment, Command};

    fn acquire(id: u128, keys: &[&str], mode: Mode, wait: Wait) -> Command {
        Command::Acquire(Box::new(Acquire {
            lease_id: LeaseId::from_u128(id).unwrap(),
            claims: keys.iter().map(|key| (Key::new(key).unwrap(), mode)).collect(),
            ttl: Ttl::default(),
            wait,
            keep_place: false,
            holder: Holder::new(&format!("holder {id}")),
            metadata: Metadata::default(),
            attachment: Attachment(0),
        }))
    }

    #[test]
    fn the_keys_that_are_held_or_waited_for_are_listed_with_the_newest_of_their_holders() {
        let mut table = LeaseTable::new();
        let shared = Mode::Shared { limit: None };
        let commands = vec![
            acquire(1, &["b", "c"], Mode::Exclusive, Wait::default()),
            acquire(2, &["d"], shared, Wait::default()),
            acquire(3, &["d"], shared, Wait::default()),
            // It waits for b, and so stands in the line of a too, which nobody holds.
            acquire(4, &["a", "b"], Mode::Exclusive, Wait::from_ms(1_000).unwrap()),
        ];
        table.apply(0, commands, &mut Vec::new());
        let fence = |key: &str, fence, token, mode, holder: &str| Fence {
            key: Key::new(key).unwrap(),
            fence: Token(fence),
            newest: Some((Token(token), mode, Holder::new(holder))),
        };
        let (b, c, d) = (
            fence("b", 1, 1, Mode::Exclusive, "holder 1"),
            fence("c", 1, 1, Mode::Exclusive, "holder 1"),
            fence("d", 2, 3, shared, "holder 3"),
        );
        let a = Fence { key: Key::new("a").unwrap(), fence: Token(5), newest: None };
        assert_eq!(table.fences(None, 10), [a.clone(), b.clone(), c.clone(), d.clone()]);
        assert_eq!(table.fences(None, 2), [a.clone(), b]);
        assert_eq!(table.fences(Some("b"), 2), [c, d]);
        assert_eq!(table.fences(Some("d"), 2), []);
        assert_eq!(table.fence_on(&a.key), a);
    }
}
