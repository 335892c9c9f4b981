use serde::{Deserialize, Serialize};

use crate::Attachment;

/// The acquires that stand for a waiter: each until its wait is over and the place is not kept for it any more, or until
/// its connection closed before its answer. The waiter has its place while one of them stands.
///
/// Which of them was sent first nobody can tell: what comes last may have been on its way for long, and its connection may
/// be closed. So none takes from another what that was answered, or waits for.
///
/// The node that serves an acquire may answer it for some time after its wait: until then it is remembered here, because it
/// may be answered by a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Puts(Vec<Put>);

/// An acquire that stands for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Put {
    /// `None` where several became one, which stands as long as the longest of them and is never given up.
    pub(crate) attachment: Option<Attachment>,
    /// The last instant at which it stands.
    pub(crate) until_ms: u64,
}

/// The most that are told apart: far more than a client, or a proxy that retries for it, sends while it waits.
const MOST: usize = 32;
/// For so long after its wait an acquire may still be answered, in milliseconds. The door gives up after 10 s of real time,
/// and the time of the cluster never goes faster.
const ANSWERED_MS: u64 = 20_000;

impl Puts {
    pub(crate) fn one(put: Put) -> Self {
        Self(vec![put])
    }

    #[cfg(test)]
    pub(crate) fn of(puts: Vec<Put>) -> Self {
        Self(puts)
    }

    /// Whether there can be such, if a snapshot says so.
    pub(crate) fn is_possible(&self) -> bool {
        (2..=MOST).contains(&self.0.len())
    }

    /// One more stands. Those that have long been answered are forgotten.
    pub(crate) fn add(&mut self, put: Put, now_ms: u64) {
        self.0.retain(|other| other.may_be_answered(now_ms));
        if let Some(known) = self.0.iter_mut().find(|other| other.attachment == put.attachment) {
            known.until_ms = known.until_ms.max(put.until_ms);
            return;
        }
        self.0.push(put);
        if self.0.len() > MOST {
            let oldest = self.0.remove(0);
            self.0[0] = Put { attachment: None, until_ms: oldest.until_ms.max(self.0[0].until_ms) };
        }
    }

    pub(crate) fn has(&self, attachment: Attachment) -> bool {
        self.0.iter().any(|put| put.attachment == Some(attachment))
    }

    /// The one with this attachment stands no more, and will not be answered.
    pub(crate) fn remove(&mut self, attachment: Attachment) {
        self.0.retain(|put| put.attachment != Some(attachment));
    }

    /// The last instant at which one of them stands; `None` if there is none.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.0.iter().map(|put| put.until_ms).max()
    }

    /// The attachment of the only one that may be answered.
    pub(crate) fn sole(&self, now_ms: u64) -> Option<Attachment> {
        let mut answerable = self.0.iter().filter(|put| put.may_be_answered(now_ms));
        answerable.next().filter(|_| answerable.next().is_none())?.attachment
    }

    pub(crate) fn as_slice(&self) -> &[Put] {
        &self.0
    }
}

impl Put {
    fn may_be_answered(&self, now_ms: u64) -> bool {
        self.until_ms.saturating_add(ANSWERED_MS) >= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(n: u64, until_ms: u64) -> Put {
        Put { attachment: Some(Attachment(n)), until_ms }
    }

    #[test]
    fn of_very_many_the_oldest_become_one() {
        let last = MOST as u64 + 2;
        let mut puts = Puts::one(put(1, 500));
        (2..=last).for_each(|n| puts.add(put(n, 100 + n), 50));
        let oldest = Put { attachment: None, until_ms: 500 };
        assert_eq!(
            (puts.as_slice().len(), puts.as_slice()[0], puts.as_slice()[1]),
            (MOST, oldest, put(4, 104))
        );
        assert!(!puts.has(Attachment(3)) && puts.has(Attachment(4)));
        (1..=last).for_each(|n| puts.remove(Attachment(n)));
        assert_eq!((puts.as_slice(), puts.sole(50)), (&[oldest][..], None));
        puts.add(put(7, 60_000), 501 + ANSWERED_MS);
        assert_eq!((puts.as_slice(), puts.sole(60_000)), (&[put(7, 60_000)][..], Some(Attachment(7))));
    }

    /// The door answers for some time after the wait: a grant may have two answers then.
    #[test]
    fn a_put_may_be_answered_after_its_wait() {
        let mut puts = Puts::one(put(2, 5_000));
        puts.add(put(1, 64_000), 4_000);
        assert_eq!(puts.sole(5_500), None);
        assert_eq!(puts.sole(5_000 + ANSWERED_MS), None);
        assert_eq!(puts.sole(5_001 + ANSWERED_MS), Some(Attachment(1)));
        puts.remove(Attachment(2));
        assert_eq!(puts.sole(5_500), Some(Attachment(1)));
    }

    #[test]
    fn a_put_that_comes_twice_stands_for_the_longer_of_its_times() {
        let mut puts = Puts::one(put(1, 500));
        puts.add(put(1, 400), 0);
        puts.add(put(2, 100), 0);
        puts.add(put(2, 300), 0);
        assert_eq!(puts.as_slice(), [put(1, 500), put(2, 300)]);
        assert_eq!((puts.until_ms(), puts.sole(300)), (Some(500), None));
    }
}
