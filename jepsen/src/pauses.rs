//! Where clients stand still, as a real one does while its garbage is collected or its machine is moved.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Clients that may be paused: they say where, and the nemesis `client-pause` says when.
#[derive(Debug)]
pub struct Pauses {
    held: watch::Sender<bool>,
    arrivals: AtomicU64,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::new()
    }
}

impl Pauses {
    /// Nobody is paused.
    pub fn new() -> Self {
        Self { held: watch::Sender::new(false), arrivals: AtomicU64::new(0) }
    }

    /// To be awaited wherever a client may be paused. While there is a pause, every second one that comes by stays until
    /// it is over: the others take over what those held.
    pub async fn here(&self) {
        if !*self.held.borrow() || self.arrivals.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return;
        }
        // It fails if the sender is gone, and that is this.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    /// How many have come by during a pause so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn every_second_client_that_comes_by_stays_until_the_pause_is_over() {
        let pauses = Pauses::new();
        assert_eq!(pauses.here().now_or_never(), Some(()));
        pauses.hold();
        let mut held = Box::pin(pauses.here());
        assert_eq!((&mut held).now_or_never(), None);
        assert_eq!(pauses.here().now_or_never(), Some(()));
        assert_eq!(pauses.arrivals(), 2);
        pauses.release();
        held.await;
        assert_eq!(pauses.here().now_or_never(), Some(()));
    }
}
