use serde::{Deserialize, Serialize};

use crate::Attachment;

/// The acquire requests for one waiter. Each keeps its place in the queue until its own wait ends, plus the time that a
/// place is kept, or until its connection closes before the answer.
///
/// Nobody can tell which of them was sent first: the last to arrive may have been delayed, and its connection may be
/// closed. So no request shortens what another was promised.
///
/// A node may answer a request for some time after its wait. Until then the request is remembered, because the answer may
/// be a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Requests(Vec<Attempt>);

/// An acquire request for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// `None` for a merger of several, which lasts as long as the longest of them and is never detached.
    pub(crate) attachment: Option<Attachment>,
    /// The last instant at which it keeps the place.
    pub(crate) until_ms: u64,
}

/// The most requests that are told apart: far more than a client sends during one wait, or a proxy that retries for it.
const MOST: usize = 32;
/// How long after its wait a request may still be answered, in milliseconds. The service gives up after 10 s of real
/// time, and cluster time never runs faster.
const ANSWERED_MS: u64 = 20_000;

impl Requests {
    pub(crate) fn one(request: Attempt) -> Self {
        Self(vec![request])
    }

    #[cfg(test)]
    pub(crate) fn of(requests: Vec<Attempt>) -> Self {
        Self(requests)
    }

    /// Whether a snapshot may contain these.
    pub(crate) fn is_possible(&self) -> bool {
        (2..=MOST).contains(&self.0.len())
    }

    /// Adds a request, and forgets those that have long been answered.
    pub(crate) fn add(&mut self, request: Attempt, now_ms: u64) {
        self.0.retain(|other| other.may_be_answered(now_ms));
        if let Some(known) = self.0.iter_mut().find(|other| other.attachment == request.attachment) {
            known.until_ms = known.until_ms.max(request.until_ms);
            return;
        }
        self.0.push(request);
        if self.0.len() > MOST {
            let oldest = self.0.remove(0);
            self.0[0] = Attempt { attachment: None, until_ms: oldest.until_ms.max(self.0[0].until_ms) };
        }
    }

    pub(crate) fn has(&self, attachment: Attachment) -> bool {
        self.0.iter().any(|request| request.attachment == Some(attachment))
    }

    /// Removes the request with this attachment, which will not be answered.
    pub(crate) fn remove(&mut self, attachment: Attachment) {
        self.0.retain(|request| request.attachment != Some(attachment));
    }

    /// The last instant at which one of them keeps the place; `None` if there is none.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.0.iter().map(|request| request.until_ms).max()
    }

    /// The attachment of the only request that may still be answered.
    pub(crate) fn sole(&self, now_ms: u64) -> Option<Attachment> {
        let mut answerable = self.0.iter().filter(|request| request.may_be_answered(now_ms));
        answerable.next().filter(|_| answerable.next().is_none())?.attachment
    }

    pub(crate) fn as_slice(&self) -> &[Attempt] {
        &self.0
    }
}

impl Attempt {
    fn may_be_answered(&self, now_ms: u64) -> bool {
        self.until_ms.saturating_add(ANSWERED_MS) >= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(n: u64, until_ms: u64) -> Attempt {
        Attempt { attachment: Some(Attachment(n)), until_ms }
    }

    #[test]
    fn the_oldest_of_very_many_are_merged() {
        let last = MOST as u64 + 2;
        let mut requests = Requests::one(request(1, 500));
        (2..=last).for_each(|n| requests.add(request(n, 100 + n), 50));
        let oldest = Attempt { attachment: None, until_ms: 500 };
        assert_eq!(
            (requests.as_slice().len(), requests.as_slice()[0], requests.as_slice()[1]),
            (MOST, oldest, request(4, 104))
        );
        assert!(!requests.has(Attachment(3)) && requests.has(Attachment(4)));
        (1..=last).for_each(|n| requests.remove(Attachment(n)));
        assert_eq!((requests.as_slice(), requests.sole(50)), (&[oldest][..], None));
        requests.add(request(7, 60_000), 501 + ANSWERED_MS);
        assert_eq!(
            (requests.as_slice(), requests.sole(60_000)),
            (&[request(7, 60_000)][..], Some(Attachment(7)))
        );
    }

    /// A request may be answered for some time after its wait, so two requests may be answered with the same grant.
    #[test]
    fn a_request_may_be_answered_after_its_wait() {
        let mut requests = Requests::one(request(2, 5_000));
        requests.add(request(1, 64_000), 4_000);
        assert_eq!(requests.sole(5_500), None);
        assert_eq!(requests.sole(5_000 + ANSWERED_MS), None);
        assert_eq!(requests.sole(5_001 + ANSWERED_MS), Some(Attachment(1)));
        requests.remove(Attachment(2));
        assert_eq!(requests.sole(5_500), Some(Attachment(1)));
    }

    #[test]
    fn a_repeated_request_lasts_for_the_longer_of_its_waits() {
        let mut requests = Requests::one(request(1, 500));
        requests.add(request(1, 400), 0);
        requests.add(request(2, 100), 0);
        requests.add(request(2, 300), 0);
        assert_eq!(requests.as_slice(), [request(1, 500), request(2, 300)]);
        assert_eq!((requests.until_ms(), requests.sole(300)), (Some(500), None));
    }
}
