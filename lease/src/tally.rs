use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ringfence_mutant::{Mutant, is};
use ringfence_wire::Mode;

/// A set of claims on one key, counted: enough to tell whether one more is compatible with it.
///
/// A set is *compatible* if it has one member, or if all are shared and they are no more than the smallest limit
/// among them. Every subset of a compatible set is compatible.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    exclusive: usize,
    shared: usize,
    /// How many claims have which limit.
    limits: BTreeMap<NonZeroU32, usize>,
}

impl Tally {
    /// Whether the set, if it is compatible, still is with this claim added.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive if is(Mutant::ExclusiveBesideShared) => self.exclusive == 0,
            Mode::Exclusive => self.exclusive == 0 && self.shared == 0,
            Mode::Shared { limit } => {
                let smallest = self.limits.keys().copied().next().into_iter().chain(limit).min();
                self.exclusive == 0 && smallest.is_none_or(|limit| self.shared < limit.get() as usize)
            }
        }
    }

    pub(crate) fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared { .. } => self.shared += 1,
        }
        if let Some(limit) = mode.limit() {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Takes out a claim that is in.
    pub(crate) fn remove(&mut self, mode: Mode) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Mode = Mode::Shared { limit: None };

    fn up_to(limit: u32) -> Mode {
        Mode::Shared { limit: NonZeroU32::new(limit) }
    }

    #[test]
    fn the_smallest_limit_of_all_counts() {
        let mut tally = Tally::default();
        for mode in [Mode::Exclusive, READ, up_to(1)] {
            assert!(tally.admits(mode), "a single claim is compatible whatever it is");
        }
        tally.add(up_to(3));
        assert!(tally.admits(up_to(2)) && tally.admits(READ));
        assert!(!tally.admits(up_to(1)) && !tally.admits(Mode::Exclusive));
        tally.add(up_to(2));
        assert!(!tally.admits(READ) && !tally.admits(up_to(9)), "two are in, and one of them bears no third");
        tally.remove(up_to(2));
        tally.add(READ);
        assert!(tally.admits(up_to(9)) && !tally.admits(up_to(2)));
        tally.add(up_to(9));
        tally.remove(up_to(3));
        tally.remove(READ);
        tally.remove(up_to(9));
        tally.add(Mode::Exclusive);
        assert!(!tally.admits(READ) && !tally.admits(Mode::Exclusive));
    }
}
