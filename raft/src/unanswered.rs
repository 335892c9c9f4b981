//! How long a request may take, and why it may have no answer, or was refused.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a proposal or a read may take, the search for a leader included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the leader is looked up again, unless a change of it is noticed earlier.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// The first pause of [`insist`] between two tries, and the longest one. A flood may cause thousands of tries.
const AGAIN: Duration = Duration::from_millis(100);
const MAX_AGAIN: Duration = Duration::from_secs(1);

/// Why there is no answer. Every path from the log to the client keeps the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Certainly not done: no leader took it.
    #[error("no leader took the request in time; it was certainly not done")]
    Unavailable,
    /// Certainly not done: the asker has its whole share of the leader's queue.
    #[error("the leader has no room for more requests of this client; this one was certainly not done")]
    Full,
    /// It may or may not have been done, or be done later.
    #[error("the request was passed on, but its outcome did not come back; it may or may not have been done")]
    Indeterminate,
}

/// The state of this node cannot be had, as the thread that has it hangs. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread that has the table hangs")]
pub struct Stuck;

impl From<Stuck> for Unanswered {
    fn from(Stuck: Stuck) -> Self {
        Self::Unavailable
    }
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// The leader refused it: nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// There is no answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

/// Tries again while a share is full, for as long as one request may take.
pub(crate) async fn insist<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Unanswered>
where
    F: Future<Output = Result<T, Unanswered>>,
{
    let (end, mut pause) = (Instant::now() + TIMEOUT, AGAIN);
    loop {
        match attempt().await {
            Err(Unanswered::Full) if Instant::now() + pause < end => sleep(pause).await,
            answered => return answered,
        }
        pause = (2 * pause).min(MAX_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An abandoned acquire whose end a full share had refused was once granted, and held its key until its time-to-live ended.
    #[tokio::test(start_paused = true)]
    async fn what_a_full_share_refuses_is_tried_again_for_a_while() {
        let attempts = Cell::new(0);
        let insist_on = async |answer: fn(u32) -> Result<(), Unanswered>| {
            attempts.set(0);
            let attempt = || {
                attempts.set(attempts.get() + 1);
                std::future::ready(answer(attempts.get()))
            };
            (insist(attempt).await, attempts.get())
        };
        let third = |attempt| if attempt == 3 { Ok(()) } else { Err(Unanswered::Full) };
        assert_eq!(insist_on(third).await, (Ok(()), 3));
        let begun = Instant::now();
        assert_eq!(insist_on(|_| Err(Unanswered::Full)).await, (Err(Unanswered::Full), 8));
        assert!((TIMEOUT - MAX_AGAIN..=TIMEOUT).contains(&begun.elapsed()));
        assert_eq!(insist_on(|_| Err(Unanswered::Unavailable)).await, (Err(Unanswered::Unavailable), 1));
    }
}
