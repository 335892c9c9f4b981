use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ringfence_wire::Mode;

/// A set of claims on one key, counted: what is judged must not be its own judge, so this is not the product's count.
///
/// By the contract a set is *compatible* if it has one member, or if all are shared and they are no more than the smallest
/// limit among them. What is incompatible stays so whatever is added: a set of which only a part is known, after the
/// logs were cut, can be found wrong, and never wrongly.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    exclusive: u64,
    shared: u64,
    limits: BTreeMap<NonZeroU32, u64>,
}

impl Tally {
    pub(super) fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared { .. } => self.shared += 1,
        }
        if let Some(limit) = mode.limit() {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Takes out a claim that is in.
    pub(super) fn remove(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive -= 1,
            Mode::Shared { .. } => self.shared -= 1,
        }
        if let Some(limit) = mode.limit()
            && let Some(count) = self.limits.get_mut(&limit)
        {
            *count -= 1;
            if *count == 0 {
                self.limits.remove(&limit);
            }
        }
    }

    pub(super) fn is_compatible(&self) -> bool {
        let limit = self.limits.keys().next().map_or(u64::MAX, |limit| limit.get().into());
        self.exclusive + self.shared <= 1 || self.exclusive == 0 && self.shared <= limit
    }

    /// Whether it is compatible with this claim in it too.
    pub(super) fn bears(&mut self, mode: Mode) -> bool {
        self.add(mode);
        let compatible = self.is_compatible();
        self.remove(mode);
        compatible
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn together(modes: &[Mode]) -> bool {
        let mut tally = Tally::default();
        // What was taken out again leaves nothing behind.
        tally.add(Mode::Shared { limit: NonZeroU32::new(1) });
        modes.iter().for_each(|&mode| tally.add(mode));
        tally.remove(Mode::Shared { limit: NonZeroU32::new(1) });
        tally.is_compatible()
    }

    #[test]
    fn one_is_always_compatible_and_many_only_shared_and_within_the_smallest_limit() {
        let read = Mode::Shared { limit: None };
        let up_to = |limit| Mode::Shared { limit: NonZeroU32::new(limit) };
        assert!(together(&[]) && together(&[Mode::Exclusive]) && together(&[up_to(1)]));
        assert!(together(&[read; 9]) && together(&[up_to(3), up_to(2)]) && together(&[read, up_to(2)]));
        assert!(!together(&[Mode::Exclusive, read]) && !together(&[Mode::Exclusive; 2]));
        assert!(!together(&[up_to(1), read]) && !together(&[up_to(9), up_to(2), read]));
        let mut two = Tally::default();
        two.add(up_to(2));
        assert!(two.bears(read) && !two.bears(Mode::Exclusive) && two.is_compatible());
    }
}
