//! What one survivor tells of a cluster that lost its quorum.
//!
//! The survivor's own revision is no bound: the others are a majority without it, and may have granted more. But a cluster that
//! was founded at the wall clock's time, in units of 1 / [`PER_MS`] ms, stays behind the clock unless it makes more than
//! [`PER_MS`] changes in a millisecond, on average since then. So the clock is the bound.
//!
//! If the first revision was ahead of the clock, the clock gives no bound, not even later: the others may have made changes for as
//! long as they ran. Such a first revision is no multiple of [`PER_MS`], by which it is known. Such a cluster gets
//! [`AHEAD`] on top of the survivor's revision; so does one whose survivor is ahead of the clock, which must be wrong then.

use ringfence_wire::{Backup, Revision};

use super::{InspectError, StateView, StoppedNode};
use crate::time::wall::{PER_MS, WallClock};

/// More than a year of [`PER_MS`] changes in each millisecond: this much may the survivor be behind.
const AHEAD: u64 = PER_MS << 35;

impl StoppedNode {
    /// A backup whose revision is at least that of the cluster, even if this node lacks its last entries.
    pub fn backup(&self) -> Result<Backup, InspectError> {
        let StateView { owner, first_revision, revision, at_ms, .. } = self.state(None)?;
        let cluster_id =
            owner.cluster_id.filter(|_| revision > Revision(0)).ok_or(InspectError::NothingCommitted)?;
        let revision = bound(first_revision, at_ms, revision, WallClock::system().revision());
        Ok(Backup { format: Backup::FORMAT, cluster_id, first_revision, revision })
    }
}

/// A cluster that has run for `at_ms` is certainly that old: if it would have begun in the future, the clock was set back.
fn bound(first: Revision, at_ms: u64, last: Revision, clock: Revision) -> Revision {
    let is_behind = first.0.saturating_add(at_ms.saturating_mul(PER_MS)) <= clock.0 && last <= clock;
    match first.0.is_multiple_of(PER_MS) && is_behind {
        true => clock,
        false => clock.max(Revision(last.0.saturating_add(AHEAD))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn bound_of(first_ms: u64, at_ms: u64, changes: u64, clock_ms: u64) -> u64 {
        let first = first_ms * PER_MS;
        bound(Revision(first), at_ms, Revision(first + changes), Revision(clock_ms * PER_MS)).0
    }

    #[test]
    fn behind_the_clock_the_clock_is_the_bound() {
        assert_eq!(bound_of(HOUR, 5, 100, HOUR + 5), (HOUR + 5) * PER_MS);
        // The clock of a cluster stands still while it has no quorum.
        assert_eq!(bound_of(HOUR, 5, 100, 9 * HOUR), 9 * HOUR * PER_MS);
        assert_eq!(bound_of(0, 5, 1, 9 * HOUR), 9 * HOUR * PER_MS);
    }

    #[test]
    fn ahead_of_the_clock_the_bound_is_far_above_the_survivor() {
        let year_of_changes = 365 * 24 * HOUR * PER_MS;
        for (first_ms, at_ms, changes, clock_ms) in [
            (9 * HOUR, 5, 100, HOUR),
            // More changes than the clock allows.
            (HOUR, 5, 7 * PER_MS, HOUR + 6),
            // The cluster began when this clock says, and ran for longer than until now.
            (HOUR, 5, 0, HOUR + 4),
        ] {
            let last = first_ms * PER_MS + changes;
            assert!(bound_of(first_ms, at_ms, changes, clock_ms) > last + year_of_changes, "{first_ms}");
        }
        // The clock has passed the survivor. The others ran for an hour without it.
        let first = Revision(10 * HOUR * PER_MS + 1);
        let clock = Revision((10 * HOUR + 10_000) * PER_MS);
        assert!(bound(first, 0, first, clock).0 > first.0 + year_of_changes);
        // It was founded so far behind that the margin alone does not reach the clock.
        assert_eq!(bound(Revision(1_000), 0, Revision(1_000), Revision(1 << 50)), Revision(1 << 50));
        let end = Revision(u64::MAX);
        assert_eq!(bound(end, u64::MAX, end, Revision(1)), end);
    }
}
