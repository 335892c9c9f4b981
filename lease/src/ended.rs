use std::collections::{BTreeMap, VecDeque};

use ringfence_wire::{EndReason, LeaseId};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::limits::REMEMBER_MS;

/// How a lease ended that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// It waited in vain.
    TimedOut,
    /// It was live, or left the queue, or was released before it was ever seen.
    Gone(EndReason),
}

impl From<End> for Refusal {
    fn from(end: End) -> Self {
        match end {
            End::TimedOut => Self::WaitTimeout,
            End::Gone(reason) => Self::Gone(reason),
        }
    }
}

/// The ids of ended leases. While an id is remembered no acquire grants it again: one that was still under way when
/// the lease ended cannot leave an orphan.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    by_id: BTreeMap<LeaseId, End>,
    /// When each ended, oldest first.
    order: VecDeque<(u64, LeaseId)>,
}

impl Ended {
    pub(crate) fn get(&self, id: LeaseId) -> Option<End> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// When the last one ended.
    pub(crate) fn latest_ms(&self) -> Option<u64> {
        self.order.back().map(|&(ended_ms, _)| ended_ms)
    }

    /// Remembers an id that is not remembered yet; of more than `most` the oldest are forgotten.
    pub(crate) fn remember(&mut self, id: LeaseId, end: End, now_ms: u64, most: usize) {
        self.by_id.insert(id, end);
        self.order.push_back((now_ms, id));
        while self.order.len() > most {
            self.forget_oldest();
        }
    }

    /// Forgets what was remembered for its full time, the oldest first and at most so many.
    pub(crate) fn forget(&mut self, now_ms: u64, at_most: usize) {
        for _ in 0..at_most {
            match self.order.front() {
                Some((ended_ms, _)) if now_ms > ended_ms.saturating_add(REMEMBER_MS) => self.forget_oldest(),
                _ => break,
            }
        }
    }

    /// All that is remembered, oldest first, with the time of its end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, LeaseId, End)> {
        self.order.iter().filter_map(|&(ended_ms, id)| Some((ended_ms, id, self.get(id)?)))
    }

    fn forget_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.by_id.remove(&id);
        }
    }
}
