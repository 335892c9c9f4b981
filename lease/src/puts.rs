use serde::{Deserialize, Serialize};

use crate::Attachment;

/// The acquires that stand for a waiter: each until its wait is over and the place is not kept for it any more, or until
/// its connection closed before its answer. The waiter has its place while one of them stands.
///
/// Which of them was sent first nobody can tell: what comes last may have been on its way for long, and its connection may
/// be closed. So none takes from another what that was answered, or waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Puts(Vec<Put>);

/// An acquire that stands for a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Put {
    /// `None` where several became one, which stands as long as the longest of them.
    pub(crate) attachment: Option<Attachment>,
    /// The last instant at which it stands.
    pub(crate) until_ms: u64,
}

/// So many are told apart. A client whose connections break one after the other has hardly more within 2 s.
const MOST: usize = 4;

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

    /// One more stands. Those that do so no more are forgotten.
    pub(crate) fn add(&mut self, put: Put, now_ms: u64) {
        self.0.retain(|other| other.until_ms >= now_ms);
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

    /// The one with this attachment stands no more.
    pub(crate) fn remove(&mut self, attachment: Attachment, now_ms: u64) {
        self.0.retain(|put| put.attachment != Some(attachment) && put.until_ms >= now_ms);
    }

    /// The last instant at which one of them stands; `None` if there is none.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.0.iter().map(|put| put.until_ms).max()
    }

    /// The attachment of the only one that stands.
    pub(crate) fn sole(&self, now_ms: u64) -> Option<Attachment> {
        let mut standing = self.0.iter().filter(|put| put.until_ms >= now_ms);
        standing.next().filter(|_| standing.next().is_none())?.attachment
    }

    pub(crate) fn as_slice(&self) -> &[Put] {
        &self.0
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
        let mut puts = Puts::one(put(1, 500));
        for n in 2..=6 {
            puts.add(put(n, 100 + n), 50);
        }
        let oldest = Put { attachment: None, until_ms: 500 };
        assert_eq!(puts.as_slice(), [oldest, put(4, 104), put(5, 105), put(6, 106)]);
        assert!(!puts.has(Attachment(1)) && puts.has(Attachment(4)));
        for n in 1..=6 {
            puts.remove(Attachment(n), 50);
        }
        assert_eq!((puts.as_slice(), puts.sole(50)), (&[oldest][..], None));
        puts.add(put(7, 600), 501);
        assert_eq!((puts.as_slice(), puts.sole(501)), (&[put(7, 600)][..], Some(Attachment(7))));
    }

    #[test]
    fn a_put_that_comes_twice_stands_for_the_longer_of_its_times() {
        let mut puts = Puts::one(put(1, 500));
        puts.add(put(1, 400), 0);
        puts.add(put(2, 100), 0);
        puts.add(put(2, 300), 0);
        assert_eq!(puts.as_slice(), [put(1, 500), put(2, 300)]);
        assert_eq!((puts.until_ms(), puts.sole(300), puts.sole(301)), (Some(500), None, Some(Attachment(1))));
    }
}
