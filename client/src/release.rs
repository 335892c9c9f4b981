//! What releases a lease that nobody has any more.
//!
//! ```text
//!  a lease, or an acquire that may be granted, is dropped ──▶ a task on its runtime releases it, for up to 30 s
//!  the client is closed ────────────────────────────────────▶ the same, for as long as `close` waits
//!  the runtime has ended, or ends before that is done ──────▶ [the last chance](crate::last), on another thread
//! ```

use std::sync::Arc;
use std::time::Duration;

use ringfence_wire::LeaseId;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::cluster::Cluster;
use crate::held::nap;
use crate::last::LastChance;
use crate::outlive::Least;

/// How long a release is repeated in the background.
const RELEASE_FOR: Duration = Duration::from_secs(30);

/// The releases in the background of one client.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// What is under way has a receiver: releases, and acquires, which may become some. Counts those that have failed.
    under_way: watch::Sender<usize>,
    /// Whether what is left is left: the client is closed.
    are_over: watch::Sender<bool>,
    pub(crate) last_chance: LastChance,
}

impl Releases {
    /// Counts as under way until this is dropped. A runtime that has ended drops it with the task.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.under_way.subscribe()
    }

    /// How many have failed so far.
    pub(crate) fn failed(&self) -> usize {
        *self.under_way.borrow()
    }

    /// Waits until none is under way, for at most this time. Returns how many still are.
    pub(crate) async fn settle(&self, within: Duration) -> usize {
        let settled = timeout(within, self.under_way.closed()).await;
        settled.map_or_else(|_| self.under_way.receiver_count(), |()| 0)
    }

    /// Ends all, also those to come.
    pub(crate) fn end(&self) {
        self.are_over.send_replace(true);
    }

    fn note_failure(&self) {
        self.under_way.send_modify(|failed| *failed += 1);
    }
}

impl Cluster {
    /// Releases on `runtime`, best effort; what has a least time, when that has passed.
    pub(crate) fn release_in_background(
        self: &Arc<Self>,
        lease_id: LeaseId,
        least: Option<Least>,
        runtime: &Handle,
    ) {
        let counted = least.is_none_or(|least| !least.is_sure()).then(|| self.releases.count());
        let release = Release { cluster: Arc::clone(self), lease_id, least, counted, is_done: false };
        drop(runtime.spawn(release.run()));
    }
}

/// A release in the background. Nobody is left to tell what comes of it, but for whoever closes the client.
struct Release {
    cluster: Arc<Cluster>,
    lease_id: LeaseId,
    least: Option<Least>,
    /// Unless all that is left is to wait: the lease ends by itself, too.
    counted: Option<watch::Receiver<usize>>,
    is_done: bool,
}

impl Release {
    async fn run(mut self) {
        let mut are_over = self.cluster.releases.are_over.subscribe();
        tokio::select! {
            biased;
            // The sender cannot be gone: this has the cluster.
            _ = are_over.wait_for(|are_over| *are_over) => {}
            () = self.release() => {}
        }
        self.is_done = true;
    }

    async fn release(&mut self) {
        if let Some(least) = &mut self.least {
            let retry_for = least.left().max(RELEASE_FOR);
            match self.cluster.keep(self.lease_id, least, retry_for).await {
                Ok(()) => {}
                Err(Error::Lost(_)) => return,
                Err(_) => self.cluster.releases.note_failure(),
            }
            self.counted = None;
            while !least.is_over() {
                sleep(nap(least.left())).await;
            }
            self.counted = Some(self.cluster.releases.count());
        }
        match self.cluster.release_within(self.lease_id, RELEASE_FOR).await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(_) => self.cluster.releases.note_failure(),
        }
    }
}

/// Its runtime has ended, unless it is done.
impl Drop for Release {
    fn drop(&mut self) {
        if self.is_done || *self.cluster.releases.are_over.borrow() {
            return;
        }
        let least = self.least.filter(|least| !least.is_over());
        if least.is_none_or(|least| !least.is_sure()) {
            LastChance::take(&self.cluster, self.lease_id, least);
        }
    }
}

/// A lease that is released in the background when this is dropped, unless disarmed.
#[derive(Debug)]
pub(crate) struct ReleaseGuard {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) lease_id: LeaseId,
    pub(crate) is_armed: bool,
    /// It is not released earlier.
    pub(crate) least: Option<Least>,
    pub(crate) runtime: Handle,
}

impl ReleaseGuard {
    pub(crate) fn new(cluster: &Arc<Cluster>, lease_id: LeaseId) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            lease_id,
            is_armed: true,
            least: None,
            runtime: Handle::current(),
        }
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        if self.is_armed {
            let least = self.least.filter(|least| !least.is_over());
            self.cluster.release_in_background(self.lease_id, least, &self.runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::transport::Nodes;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_release_on_a_runtime_that_has_ended_is_not_waited_for() {
        let cluster =
            Arc::new(Cluster::new(Nodes::parse(["http://127.0.0.1:1"], &crate::Tls::default()).unwrap()));
        let ended = runtime();
        let handle = ended.handle().clone();
        drop(ended);
        cluster.release_in_background(LeaseId::random(), None, &handle);
        let left = runtime().block_on(cluster.releases.settle(Duration::from_secs(60)));
        assert_eq!(left, 0);
    }
}
