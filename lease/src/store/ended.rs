use ringfence_wire::{EndReason, LeaseId};
use serde::{Deserialize, Serialize};

use super::fifo::Fifo;
use super::ids::Ids;
use crate::Refusal;
use crate::limits::REMEMBER_MS;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// Its wait timed out.
    TimedOut,
    /// It was live, or left the queue, or was released before its acquire arrived.
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

/// A lease that ended, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedLease {
    pub(crate) ended_ms: u64,
    pub(crate) id: LeaseId,
    pub(crate) end: End,
}

/// The ids of ended leases. While an id is remembered, no acquire grants it again: an acquire that arrives after the
/// end of its lease leaves no orphan.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Oldest first.
    order: Fifo<EndedLease>,
    /// Their numbers in `order`.
    by_id: Ids<u32>,
}

impl Ended {
    /// Builds it from these leases, oldest first; `None` if one comes twice.
    pub(crate) fn restore(order: Fifo<EndedLease>) -> Option<Self> {
        let all = order.numbered().map(|(number, ended)| (ended.id, number));
        let by_id = Ids::of(order.len(), all, id_in(&order))?;
        Some(Self { order, by_id })
    }

    pub(crate) fn get(&self, id: LeaseId) -> Option<End> {
        let number = self.by_id.get(id, id_in(&self.order))?;
        self.order.get(number).map(|ended| ended.end)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Remembers an id that is not remembered yet. Beyond `most` it forgets the oldest.
    pub(crate) fn remember(&mut self, id: LeaseId, end: End, now_ms: u64, most: usize) {
        let number = self.order.push_back(EndedLease { ended_ms: now_ms, id, end });
        self.by_id.insert(id, number, id_in(&self.order));
        while self.order.len() > most {
            self.forget_oldest();
        }
    }

    /// When the oldest ended.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        self.order.front().map(|oldest| oldest.ended_ms)
    }

    /// Whether a lease that ended then was remembered for its full time.
    pub(super) fn is_over(ended_ms: u64, now_ms: u64) -> bool {
        now_ms > ended_ms.saturating_add(REMEMBER_MS)
    }

    /// Forgets the oldest and those that ended at the same time, at most so many. Returns how many.
    pub(super) fn forget_alike(&mut self, at_most: usize) -> usize {
        let ended_ms = self.oldest_ms();
        let mut forgotten = 0;
        while forgotten < at_most && self.order.len() > 0 && self.oldest_ms() == ended_ms {
            self.forget_oldest();
            forgotten += 1;
        }
        forgotten
    }

    /// The ended leases at this instant, oldest first.
    pub(crate) fn freeze(&self) -> Fifo<EndedLease> {
        self.order.clone()
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.order.front() {
            self.by_id.remove(oldest.id, id_in(&self.order));
            self.order.pop_front();
        }
    }
}

fn id_in(order: &Fifo<EndedLease>) -> impl Fn(u32) -> LeaseId {
    |number| order.get(number).expect("an id leaves the index before its number leaves the queue").id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> LeaseId {
        LeaseId::from_u128(u128::from(n) + 1).unwrap()
    }

    fn listed(frozen: &Fifo<EndedLease>) -> Vec<u64> {
        frozen.iter().map(|ended| ended.ended_ms).collect()
    }

    #[test]
    fn a_view_keeps_what_is_forgotten_later() {
        let mut ended = Ended::default();
        // One ends each millisecond. Of 10,000 the first 500 are over the limit.
        for n in 0..10_000 {
            ended.remember(id(n), End::TimedOut, n, 9_500);
        }
        let first = ended.freeze();
        let mut views = Vec::new();
        for step in 1..=9 {
            let oldest = 500 + step * 1_000;
            while ended.oldest_ms().is_some_and(|ended_ms| Ended::is_over(ended_ms, oldest + REMEMBER_MS)) {
                assert_eq!(ended.forget_alike(usize::MAX), 1);
            }
            ended.remember(id(9_999 + step), End::Gone(EndReason::Released), 9_999 + step, 9_500);
            views.push((oldest..10_000 + step, ended.freeze()));
        }
        assert_eq!((ended.get(id(9_499)), ended.get(id(9_500))), (None, Some(End::TimedOut)));
        assert_eq!(ended.get(id(10_008)), Some(End::Gone(EndReason::Released)));
        assert_eq!((ended.len(), ended.order.len()), (509, 509));
        assert_eq!(listed(&first), (500..10_000).collect::<Vec<_>>());
        for (remembered, view) in views {
            assert_eq!(listed(&view), remembered.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_duplicate_id_is_not_restored() {
        let mut order = Fifo::default();
        for n in [1, 2, 3] {
            order.push_back(EndedLease { ended_ms: 1, id: id(n), end: End::TimedOut });
        }
        assert!(Ended::restore(order.clone()).is_some());
        order.push_back(EndedLease { ended_ms: 2, id: id(2), end: End::TimedOut });
        assert!(Ended::restore(order).is_none());
    }
}
