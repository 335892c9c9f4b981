//! What the entries did that this node applied, as one number, to compare with other nodes.
//!
//! Each entry adds a hash of what it did: the outcomes of its commands, its changes, and the time, rules and revision after
//! it. The difference of two sums says what the entries between did. It does not depend on where a node began to apply, so
//! nothing of this is in a snapshot.
//!
//! Nodes of different versions compare these sums. So what is hashed for an entry may change only with its rules, and XXH3 is
//! the same on every platform.

use std::collections::VecDeque;

use ringfence_lease::{Change, Event, LeaseTable, Outcome, Refusal};
use ringfence_wire::{EndReason, Grant, Key, Mode, Waiting};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::consensus::LogId;

/// The number of sums that are kept: those of some seconds of a busy cluster.
const MOST: usize = 65_536;
/// Of these, how many may be dropped before the others are asked about the rest.
const LEEWAY: u64 = MOST as u64 / 4;

/// The sums after the latest entries. Entries are counted from the first of the log.
#[derive(Debug)]
pub(crate) struct Witness {
    /// How many entries were applied, at the last of the sums.
    applied: u64,
    /// Never empty.
    sums: VecDeque<u64>,
    /// What the entry did that is being applied.
    deeds: Vec<u8>,
}

/// What the entries did that follow the first `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Difference {
    pub(crate) after: u64,
    pub(crate) sum: u64,
}

impl Default for Witness {
    fn default() -> Self {
        Self { applied: 0, sums: VecDeque::from([0]), deeds: Vec::new() }
    }
}

impl Witness {
    /// Begins anew after the entry `last`, because a snapshot replaced the table.
    pub(crate) fn start_after(&mut self, last: Option<LogId>) {
        self.applied = last.map_or(0, |id| id.index() + 1);
        self.sums = VecDeque::from([0]);
    }

    /// How many entries were applied.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// The count of entries after which to compare: it stays known for a while, here and on a node that applies faster.
    pub(crate) fn comparable_from(&self) -> u64 {
        let leeway = if self.sums.len() < MOST { 0 } else { LEEWAY };
        self.oldest() + leeway
    }

    /// The least count of entries that the sum is known for.
    fn oldest(&self) -> u64 {
        self.applied + 1 - self.sums.len() as u64
    }

    /// Notes what the commands of the next entry did, before [`Witness::end_entry`].
    pub(crate) fn note(&mut self, outcomes: &[Outcome], events: &[Event], table: &LeaseTable) {
        self.put([table.rules().into(), table.at_ms(), table.revision().0]);
        self.put([outcomes.len() as u64, events.len() as u64]);
        for outcome in outcomes {
            self.put_outcome(outcome);
        }
        for event in events {
            self.put_event(event);
        }
    }

    /// Adds what the entry at `log_id` did.
    pub(crate) fn end_entry(&mut self, log_id: LogId) {
        self.put([log_id.index(), log_id.committed_leader_id().term]);
        let sum = self.sums.back().map_or(0, |sum| sum.wrapping_add(xxh3_64(&self.deeds)));
        self.deeds.clear();
        if self.sums.len() == MOST {
            self.sums.pop_front();
        }
        self.sums.push_back(sum);
        self.applied += 1;
    }

    /// What the entries did after the first `after`, or after the first that are still known, up to the first `upto`. `None` if
    /// that is not applied yet, or not known any more.
    pub(crate) fn difference(&self, after: u64, upto: u64) -> Option<Difference> {
        let oldest = self.oldest();
        let after = after.max(oldest);
        let sum = |count: u64| self.sums.get(usize::try_from(count.checked_sub(oldest)?).ok()?);
        let sum = sum(upto)?.wrapping_sub(*sum(after)?);
        (after <= upto).then_some(Difference { after, sum })
    }

    fn put<const N: usize>(&mut self, numbers: [u64; N]) {
        self.deeds.extend_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
    }

    fn put_outcome(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Granted(grant) => self.put_grant(0, grant),
            Outcome::Standing(grant) => self.put_grant(1, grant),
            Outcome::Waiting(waiting) => self.put_waiting(2, waiting),
            Outcome::Done => self.put([3]),
            Outcome::Kept(waiting) => self.put_waiting(4, waiting),
            Outcome::Refused(refusal) => self.put_refusal(refusal),
            Outcome::Changed(grants) => {
                self.put([18, grants.len() as u64]);
                grants.iter().for_each(|grant| self.put_grant(0, grant));
            }
        }
    }

    fn put_grant(&mut self, kind: u64, grant: &Grant) {
        let expires_in_ms = grant.expires_in_ms.unwrap_or(u64::MAX);
        self.put([kind, grant.token.0, grant.ttl_ms.into(), expires_in_ms]);
        for key in &grant.keys {
            self.put([key.fence.0]);
        }
    }

    fn put_waiting(&mut self, kind: u64, waiting: &Waiting) {
        self.put([kind, waiting.ahead]);
        self.deeds.extend_from_slice(&waiting.lease_id.to_u128().to_le_bytes());
    }

    fn put_refusal(&mut self, refusal: &Refusal) {
        match refusal {
            Refusal::Held { holders, waiters } => {
                self.put([5, holders.len() as u64, *waiters]);
                for holder in holders {
                    self.put([holder.token.0, holder.expires_in_ms]);
                }
            }
            Refusal::WaitTimeout => self.put([6]),
            Refusal::Mismatch => self.put([7]),
            Refusal::NotGranted => self.put([8]),
            Refusal::NotLive => self.put([9]),
            Refusal::Gone(reason) => self.put([10, number_of(*reason)]),
            Refusal::Unknown => self.put([11]),
            Refusal::Overloaded => self.put([12]),
            Refusal::TooManyLeases { most } => self.put([13, u64::from(*most)]),
            Refusal::TooManyWaiting { most } => self.put([14, u64::from(*most)]),
            Refusal::Full => self.put([15]),
            Refusal::TooManyBytes { most } => self.put([16, *most]),
            Refusal::NotYet { rules, since } => self.put([17, u64::from(*rules), u64::from(*since)]),
            Refusal::Changed { key } => self.put_key(19, key),
            Refusal::OfDatabase { key } => self.put_key(20, key),
        }
    }

    fn put_key(&mut self, kind: u64, key: &Key) {
        self.put([kind, key.as_str().len() as u64]);
        self.deeds.extend_from_slice(key.as_str().as_bytes());
    }

    fn put_event(&mut self, event: &Event) {
        let change = match event.change {
            Change::Granted => 0,
            Change::Queued => 1,
            Change::Left(None) => 2,
            Change::Left(Some(reason)) => 16 + number_of(reason),
            Change::Ended(reason) => 32 + number_of(reason),
        };
        self.put([event.revision.0, change, event.token.map_or(0, |token| token.0)]);
        self.deeds.extend_from_slice(&event.lease_id.to_u128().to_le_bytes());
        if let Some(by) = &event.by {
            self.put([by.as_str().len() as u64]);
            self.deeds.extend_from_slice(by.as_str().as_bytes());
        }
        for (key, mode, fence) in &event.keys {
            let mode = match mode {
                Mode::Exclusive => u64::MAX,
                Mode::Shared { limit } => limit.map_or(0, |limit| limit.get().into()),
            };
            self.put([mode, fence.0, key.as_str().len() as u64]);
            self.deeds.extend_from_slice(key.as_str().as_bytes());
        }
    }
}

fn number_of(reason: EndReason) -> u64 {
    match reason {
        EndReason::Released => 0,
        EndReason::Expired => 1,
        EndReason::Revoked => 2,
        EndReason::Abandoned => 3,
    }
}

#[cfg(test)]
mod tests;
