//! Pauses of clients, as by garbage collection or the migration of a machine.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Pauses clients: they choose the places, and the nemesis `client-pause` the times.
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
    /// No client is paused.
    pub fn new() -> Self {
        Self { held: watch::Sender::new(false), arrivals: AtomicU64::new(0) }
    }

    /// Wherever a client may be paused, it awaits this. During a pause, every second client that arrives waits for its end; the
    /// others take over what those held.
    pub async fn here(&self) {
        if !*self.held.borrow() || self.arrivals.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return;
        }
        // It fails only without the sender, which is in `self`.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    /// The number of clients that arrived during pauses so far.
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
    async fn every_second_client_waits_for_the_end_of_a_pause() {
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
