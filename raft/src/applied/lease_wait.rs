use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::applied::table::Applied;
use crate::applied::waits::{Awaited, Left, Settled, settled};
use crate::reply::Reply;
use crate::unanswered::Stuck;

/// The wait of one request for one lease. Dropping it ends the wait.
pub struct LeaseWait {
    left: Left,
    /// Until it ends.
    awaited: Option<Awaited>,
    number: u64,
    settled: oneshot::Receiver<Settled>,
}

impl LeaseWait {
    pub(crate) fn start(
        applied: &Applied,
        awaited: Awaited,
        (reply, settled_here): (Reply<Settled>, oneshot::Receiver<Settled>),
    ) -> Result<Self, Stuck> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut state = applied.try_lock()?;
        let oldest = match settled(&state.table, &awaited) {
            Some(settled) => {
                reply.send_here(settled);
                None
            }
            None => state.waits.add(awaited.clone(), number, reply),
        };
        drop(state);
        drop(oldest);
        Ok(Self { left: applied.left(), awaited: Some(awaited), number, settled: settled_here })
    }

    /// Waits until this node has applied the grant or the end of the lease. `None` if the node has stopped, or too many requests that
    /// came later wait for the same lease.
    pub async fn settled(&mut self) -> Option<Settled> {
        let settled = (&mut self.settled).await.ok();
        // Whoever settles a wait, or has dropped it, has removed it.
        self.awaited = None;
        settled
    }
}

impl Drop for LeaseWait {
    fn drop(&mut self) {
        // Without the lock: who has it may be the thread that hangs, because of which this wait is given up.
        if let Some(awaited) = self.awaited.take() {
            let _ = self.left.send((awaited, self.number));
        }
    }
}
