use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::num::NonZeroU32;

use ringfence_wire::Mode;

/// Counts the modes of a set of leases on one key: enough to tell whether one more is compatible.
///
/// A set is *compatible* if it has one member, or if all are shared and their number is within the smallest limit among
/// them. Every subset of a compatible set is compatible.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modes {
    exclusive: usize,
    shared: usize,
    /// How many of the shared have which limit.
    limits: BTreeMap<NonZeroU32, usize>,
}

impl Modes {
    /// Whether a compatible set stays compatible with one more of this mode.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.exclusive == 0 && self.shared == 0,
            Mode::Shared { limit } => {
                let smallest = self.limits.keys().copied().next().into_iter().chain(limit).min();
                self.exclusive == 0 && smallest.is_none_or(|limit| self.shared < limit.get() as usize)
            }
        }
    }

    pub(crate) fn add(&mut self, mode: Mode) {
        *self.count(mode) += 1;
        if let Some(limit) = mode.limit() {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Removes a mode that is in the set.
    pub(crate) fn remove(&mut self, mode: Mode) {
        *self.count(mode) -= 1;
        if let Some(Entry::Occupied(mut count)) = mode.limit().map(|limit| self.limits.entry(limit)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn count(&mut self, mode: Mode) -> &mut usize {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared { .. } => &mut self.shared,
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
    fn the_smallest_limit_counts() {
        let mut modes = Modes::default();
        for mode in [Mode::Exclusive, READ, up_to(1)] {
            assert!(modes.admits(mode), "a single lease is compatible whatever its mode");
        }
        modes.add(up_to(3));
        assert!(modes.admits(up_to(2)) && modes.admits(READ));
        assert!(!modes.admits(up_to(1)) && !modes.admits(Mode::Exclusive));
        modes.add(up_to(2));
        assert!(!modes.admits(READ) && !modes.admits(up_to(9)), "one of the two has the limit 2");
        modes.remove(up_to(2));
        modes.add(READ);
        assert!(modes.admits(up_to(9)) && !modes.admits(up_to(2)));
        modes.add(up_to(9));
        modes.remove(up_to(3));
        modes.remove(READ);
        modes.remove(up_to(9));
        modes.add(Mode::Exclusive);
        assert!(!modes.admits(READ) && !modes.admits(Mode::Exclusive));
    }
}
