use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::applied::table::Applied;
use crate::applied::waits::{Awaited, Settled, settled};
use crate::reply::Reply;

/// While a lease waits, its leader logs the time each half a second. A node that has applied nothing for so long is cut off from
/// the leader, or has a disk that hangs, or there is no leader. Another node may know that the lease was granted.
const STANDS_STILL: Duration = Duration::from_secs(2);

/// The wait of one request for one lease. Dropping it ends the wait.
pub struct LeaseWait {
    applied: Applied,
    awaited: Awaited,
    number: u64,
    settled: oneshot::Receiver<Settled>,
}

impl LeaseWait {
    pub(crate) fn start(
        applied: &Applied,
        awaited: Awaited,
        (reply, settled_here): (Reply<Settled>, oneshot::Receiver<Settled>),
    ) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut state = applied.lock();
        let oldest = match settled(&state.table, &awaited) {
            Some(settled) => {
                reply.send_here(settled);
                None
            }
            None => state.waits.add(awaited.clone(), number, reply),
        };
        drop(state);
        drop(oldest);
        Self { applied: applied.clone(), awaited, number, settled: settled_here }
    }

    /// Waits until this node has applied the grant or the end of the lease. `None` if the node has stopped, or has applied
    /// nothing for 2 s, or if too many requests that came later wait for the same lease.
    pub async fn settled(&mut self) -> Option<Settled> {
        tokio::select! {
            biased;
            settled = &mut self.settled => settled.ok(),
            () = stands_still(&self.applied) => None,
        }
    }
}

impl Drop for LeaseWait {
    fn drop(&mut self) {
        // After a panic under the lock, another one here would end the process before the node can say why.
        if !self.applied.is_poisoned() {
            self.applied.lock().waits.remove(&self.awaited, self.number);
        }
    }
}

/// Completes once nothing has been applied for [`STANDS_STILL`].
async fn stands_still(applied: &Applied) {
    let begun = Instant::now();
    loop {
        let until = applied.lock().applied_at.max(begun) + STANDS_STILL;
        if until <= Instant::now() {
            return;
        }
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::LeaseId;

    use super::*;

    /// A request once waited to its end at a node that nobody sent anything any more, though its lease was granted.
    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_the_node_stands_still() {
        let applied = Applied::new();
        let awaited = (LeaseId::from_u128(1).unwrap(), None);
        let begun = Instant::now();
        let applies = async {
            for _ in 0..10 {
                tokio::time::sleep(STANDS_STILL - Duration::from_millis(1)).await;
                applied.lock().applied_up_to(None);
            }
            Instant::now()
        };
        let mut wait = LeaseWait::start(&applied, awaited.clone(), Reply::new(None));
        let (settled, last) = tokio::join!(wait.settled(), applies);
        assert_eq!((settled, begun.elapsed()), (None, last + STANDS_STILL - begun));
        // A follower of an idle cluster has applied nothing for long.
        let mut next = LeaseWait::start(&applied, awaited, Reply::new(None));
        assert_eq!((next.settled().await, last.elapsed()), (None, 2 * STANDS_STILL));
    }
}
