use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ringfence_wire::{Mode, ModeName};

/// The claims on one key, counted. This shares no code with the product, which must not be its own judge.
///
/// A set of claims is *compatible* if it has one member, or if all are shared and they are no more than the smallest limit
/// among them. Adding to an incompatible set never makes it compatible: a set of which only a part is known, because the
/// logs were cut, can be found wrong, and never wrongly.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    exclusive: u64,
    shared: u64,
    limits: BTreeMap<NonZeroU32, u64>,
}

impl Tally {
    pub(super) const EMPTY: Self = Self { exclusive: 0, shared: 0, limits: BTreeMap::new() };

    pub(super) fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared { .. } => self.shared += 1,
        }
        if let Some(limit) = mode.limit() {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Removes a claim that was added.
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

    /// Whether it stays compatible when this claim is added.
    pub(super) fn bears(&self, mode: Mode) -> bool {
        let mut all = self.clone();
        all.add(mode);
        all.is_compatible()
    }
}

/// A mode from its two words.
pub(super) fn mode(name: ModeName, limit: Option<NonZeroU32>) -> Mode {
    match name {
        ModeName::Exclusive => Mode::Exclusive,
        ModeName::Shared => Mode::Shared { limit },
    }
}
