//! Bounds of a number that only rises, such as the table's revision or a key's fence, over the time of a run.
//!
//! A call that was answered with a number proves that it had been reached when the call ended. A linearizable read of a
//! number proves that it had not been passed when the read was sent. Two calls are concurrent if one was sent in the
//! microsecond in which the other ended.

use std::cmp::Reverse;

/// What is known about a number at a time, and the call that proves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) at_us: u64,
    pub(crate) number: u64,
    pub(crate) call: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Bounds {
    /// From `at_us` on it is at least `number`. Sorted by time; every number is higher than those before.
    floors: Vec<Bound>,
    /// Up to `at_us` it is at most `number`. Sorted by time; every number is lower than those after.
    ceilings: Vec<Bound>,
}

impl Bounds {
    pub(crate) fn new(mut floors: Vec<Bound>, mut ceilings: Vec<Bound>) -> Self {
        floors.sort_by_key(|bound| (bound.at_us, Reverse(bound.number)));
        let mut highest = None;
        floors.retain(|bound| {
            let is_higher = highest.is_none_or(|highest| bound.number > highest);
            highest = highest.max(Some(bound.number));
            is_higher
        });
        ceilings.sort_by_key(|bound| (Reverse(bound.at_us), bound.number));
        let mut lowest = u64::MAX;
        ceilings.retain(|bound| {
            let is_lower = bound.number < lowest;
            lowest = lowest.min(bound.number);
            is_lower
        });
        ceilings.reverse();
        Self { floors, ceilings }
    }

    /// The highest lower bound for a call that was sent at `us`.
    pub(crate) fn floor(&self, us: u64) -> Option<Bound> {
        let later = self.floors.partition_point(|bound| bound.at_us < us);
        later.checked_sub(1).map(|last| self.floors[last])
    }

    /// The lowest upper bound for a call that ended at `us`.
    pub(crate) fn ceiling(&self, us: u64) -> Option<Bound> {
        self.ceilings.get(self.ceilings.partition_point(|bound| bound.at_us <= us)).copied()
    }

    /// The first proof that `number` had been reached.
    pub(crate) fn reached(&self, number: u64) -> Option<Bound> {
        self.floors.get(self.floors.partition_point(|bound| bound.number < number)).copied()
    }
}
