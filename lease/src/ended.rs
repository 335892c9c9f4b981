use std::collections::BTreeMap;

use ringfence_wire::{EndReason, LeaseId};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::fifo::Fifo;
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

/// A lease that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedLease {
    pub(crate) ended_ms: u64,
    pub(crate) id: LeaseId,
    pub(crate) end: End,
}

/// The ids of ended leases. While an id is remembered no acquire grants it again: one that was still under way when
/// the lease ended cannot leave an orphan.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    by_id: BTreeMap<LeaseId, End>,
    /// Oldest first.
    order: Fifo<EndedLease>,
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
        self.order.back().map(|last| last.ended_ms)
    }

    /// Remembers an id that is not remembered yet; of more than `most` the oldest are forgotten.
    pub(crate) fn remember(&mut self, id: LeaseId, end: End, now_ms: u64, most: usize) {
        self.by_id.insert(id, end);
        self.order.push_back(EndedLease { ended_ms: now_ms, id, end });
        while self.order.len() > most {
            self.forget_oldest();
        }
    }

    /// Forgets what was remembered for its full time, the oldest first and at most so many.
    pub(crate) fn forget(&mut self, now_ms: u64, at_most: usize) {
        for _ in 0..at_most {
            match self.order.front() {
                Some(oldest) if now_ms > oldest.ended_ms.saturating_add(REMEMBER_MS) => self.forget_oldest(),
                _ => break,
            }
        }
    }

    /// All that is remembered at this instant, oldest first.
    pub(crate) fn freeze(&self) -> Fifo<EndedLease> {
        self.order.clone()
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            self.by_id.remove(&oldest.id);
        }
    }
}
