//! What the table's revision was at least and at most at an instant, as far as calls tell.
//!
//! A revision is reached and never left. So whoever had been shown one bounds all that comes later from below, and a
//! linearizable read of one bounds all that was over before it was sent from above. A node's own state may lag: it bounds
//! from below only.

use std::collections::HashMap;

use ringfence_wire::{EndReason, LeaseId, VerdictName};

use crate::history::{Asked, Call, Came, ChangeName, History};

/// So long an id that was released is remembered, and not granted.
const REMEMBERED_US: u64 = 60_000_000;

/// Bounds of a number that only rises, with the calls that they come from.
#[derive(Default)]
pub(super) struct Bounds {
    /// From then on it is at least this, by time; each is more than those before.
    floors: Vec<Bound>,
    /// Up to then it is at most this, by time; each is less than those after.
    ceilings: Vec<Bound>,
}

/// A bound, from its time on or up to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    at_us: u64,
    pub(super) number: u64,
    pub(super) call: Option<u64>,
}

impl Bounds {
    /// Those of the table's revision.
    pub(super) fn of_revision(history: &History) -> Self {
        let mut bounds = Self::default();
        for call in &history.calls {
            let by = Some(call.id);
            match (&call.came, &call.asked) {
                (Came::Granted { grant, standing, .. }, asked) => {
                    // A fence is a live token, or one more than the revision.
                    let fences = grant.keys.iter().map(|granted| granted.fence.0.saturating_sub(1));
                    bounds.at_least(call.ended_us, fences.fold(grant.token.0, u64::max), by);
                    // It was granted by this call, not by one before.
                    if !standing && matches!(asked, Asked::Acquire { .. }) {
                        bounds.at_most(call.sent_us, grant.token.0.saturating_sub(1), by);
                    }
                }
                (Came::Verdict { verdict }, asked) => {
                    bounds.at_least(call.ended_us, verdict.fence.0.saturating_sub(1), by);
                    if let (Asked::Validate { token, .. }, VerdictName::Live) = (asked, verdict.verdict) {
                        bounds.at_least(call.ended_us, token.0, by);
                    }
                }
                (Came::Key { view }, asked) => {
                    bounds.at_least(call.ended_us, view.revision.0, by);
                    if !matches!(asked, Asked::Key { local: true, .. }) {
                        bounds.at_most(call.sent_us, view.revision.0, by);
                    }
                }
                _ => {}
            }
        }
        for sight in &history.sights {
            bounds.at_least(sight.ended_us, sight.revision.0, None);
        }
        for view in &history.end.keys {
            bounds.at_most(history.end.healed_us.min(history.end.read_us), view.revision.0, None);
        }
        bounds.settle();
        bounds.causes(history);
        bounds.settle();
        bounds
    }

    /// A change comes after the first call that asked for it was sent, and before one that was told that it is made ended.
    fn causes(&mut self, history: &History) {
        let mut acquires: HashMap<LeaseId, &Call> = HashMap::new();
        let mut releases: HashMap<LeaseId, Vec<&Call>> = HashMap::new();
        for call in &history.calls {
            match &call.asked {
                Asked::Acquire { lease, .. } => drop(acquires.entry(*lease).or_insert(call)),
                Asked::Release { lease } => releases.entry(*lease).or_default().push(call),
                _ => {}
            }
        }
        let mut grants: HashMap<LeaseId, usize> = HashMap::new();
        for change in history.end.changes.iter().filter(|change| change.change == ChangeName::Granted) {
            *grants.entry(change.lease_id).or_default() += 1;
        }
        for change in &history.end.changes {
            let before = change.revision.0.saturating_sub(1);
            match (change.change, change.reason, change.token) {
                (ChangeName::Granted | ChangeName::Queued, ..) => {
                    if let Some(call) = acquires.get(&change.lease_id) {
                        self.at_most(call.sent_us, before, Some(call.id));
                    }
                }
                (ChangeName::Ended, Some(EndReason::Released), Some(token)) => {
                    let releases = releases.get(&change.lease_id).map_or(&[][..], Vec::as_slice);
                    if let Some(first) = releases.first() {
                        self.at_most(first.sent_us, before, Some(first.id));
                    }
                    // One that came before the grant is done as well; but then it is not granted for a while.
                    let Some(granted_us) = self.reached_us(token.0) else { continue };
                    let once = grants.get(&change.lease_id).is_none_or(|grants| *grants == 1);
                    for call in releases {
                        if once && call.came == Came::Done && granted_us < call.sent_us + REMEMBERED_US {
                            self.at_least(call.ended_us, change.revision.0, Some(call.id));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// When it was known to have come to `number`.
    fn reached_us(&self, number: u64) -> Option<u64> {
        self.floors.get(self.floors.partition_point(|bound| bound.number < number)).map(|bound| bound.at_us)
    }

    /// It was this much when a call ended.
    pub(super) fn at_least(&mut self, ended_us: u64, number: u64, call: Option<u64>) {
        self.floors.push(Bound { at_us: ended_us, number, call });
    }

    /// It was no more than this when a call was sent.
    pub(super) fn at_most(&mut self, sent_us: u64, number: u64, call: Option<u64>) {
        self.ceilings.push(Bound { at_us: sent_us, number, call });
    }

    /// Sorts, and drops those that say no more than others. To be called before the first question.
    pub(super) fn settle(&mut self) {
        self.floors.sort_by_key(|bound| (bound.at_us, bound.number));
        let mut highest = None;
        self.floors.retain(|bound| {
            let says_more = highest.is_none_or(|highest| bound.number > highest);
            highest = highest.max(Some(bound.number));
            says_more
        });
        self.ceilings.sort_by_key(|bound| std::cmp::Reverse(bound.at_us));
        let mut lowest = None;
        self.ceilings.retain(|bound| {
            let says_more = lowest.is_none_or(|lowest| bound.number < lowest);
            lowest = Some(lowest.map_or(bound.number, |lowest: u64| lowest.min(bound.number)));
            says_more
        });
        self.ceilings.reverse();
    }

    /// What it was at least when a call was sent then.
    pub(super) fn floor(&self, sent_us: u64) -> Option<Bound> {
        let later = self.floors.partition_point(|bound| bound.at_us < sent_us);
        later.checked_sub(1).map(|index| self.floors[index])
    }

    /// What it was at most when a call ended then.
    pub(super) fn ceiling(&self, ended_us: u64) -> Option<Bound> {
        self.ceilings.get(self.ceilings.partition_point(|bound| bound.at_us <= ended_us)).copied()
    }
}
