//! What releases a lease that nobody has any more.
//!
//! ```text
//!  a lease, or an acquire that may be granted, is dropped ──▶ a task on its runtime releases it, for up to 30 s
//!  the client is closed ────────────────────────────────────▶ the same, for as long as `close` waits
//!  the runtime has ended, or ends before that is done ──────▶ the runtime where it is dropped, or the last chance: a thread
//! ```

use std::sync::Arc;
use std::time::Duration;

use ringfence_wire::LeaseId;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::Error;
use crate::cluster::Cluster;
use crate::held::nap;
use crate::last;
use crate::outlive::Least;
use crate::releases::UnderWay;

/// How long a release is repeated in the background.
const RELEASE_FOR: Duration = Duration::from_secs(30);

impl Cluster {
    /// Has the lease last for so long, even if this process ends.
    pub(crate) async fn keep(
        &self,
        lease_id: LeaseId,
        least: &mut Least,
        retry_for: Duration,
    ) -> Result<(), Error> {
        if !least.is_sure() {
            self.renew_within(lease_id, Some(least.ttl()), retry_for).await?;
            least.confirm();
        }
        Ok(())
    }

    /// Releases on `runtime`, best effort; what has a least time, when that has passed.
    pub(crate) fn release_in_background(
        self: &Arc<Self>,
        lease_id: LeaseId,
        least: Option<Least>,
        runtime: &Handle,
    ) {
        let counted = least.is_none_or(|least| !least.is_sure()).then(|| self.releases.count());
        let (cluster, runtime) = (Arc::clone(self), runtime.clone());
        Release { cluster, lease_id, least, counted, runtime, is_done: false }.spawn();
    }
}

/// A release in the background. Nobody but `close` learns whether it succeeds.
struct Release {
    cluster: Arc<Cluster>,
    lease_id: LeaseId,
    least: Option<Least>,
    /// Unless all that is left is to wait: the lease ends by itself, too.
    counted: Option<UnderWay>,
    runtime: Handle,
    is_done: bool,
}

impl Release {
    fn spawn(self) {
        drop(self.runtime.clone().spawn(self.run()));
    }

    async fn run(mut self) {
        let mut ends = self.cluster.releases.ends();
        let has_failed = tokio::select! {
            biased;
            // The sender cannot be gone: this has the cluster.
            _ = ends.wait_for(|over| *over) => true,
            released = self.release() => !matches!(released, Ok(()) | Err(Error::Lost(_))),
        };
        self.end(has_failed);
    }

    async fn release(&mut self) -> Result<(), Error> {
        if let Some(least) = &mut self.least {
            let retry_for = least.left().max(RELEASE_FOR);
            match self.cluster.keep(self.lease_id, least, retry_for).await {
                Ok(()) => self.counted = None,
                Err(lost @ Error::Lost(_)) => return Err(lost),
                // The lease may end before `least`, so it counts as left unless it is released.
                Err(_) => {}
            }
            while !least.is_over() {
                sleep(nap(least.left())).await;
            }
            self.counted.get_or_insert_with(|| self.cluster.releases.count());
        }
        self.cluster.release_within(self.lease_id, RELEASE_FOR).await
    }

    fn end(&mut self, has_failed: bool) {
        self.is_done = true;
        if let Some(counted) = &mut self.counted {
            counted.has_failed = has_failed;
        }
    }
}

/// Its runtime has ended, unless it is done.
impl Drop for Release {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if self.cluster.releases.are_over() {
            return self.end(true);
        }
        let least = self.least.filter(|least| !least.is_over());
        if least.is_some_and(|least| least.is_sure()) {
            return;
        }
        match Handle::try_current() {
            // The runtime of the lease has ended. Dropping the lease must not block another runtime.
            Ok(other) if other.id() != self.runtime.id() => {
                self.cluster.release_in_background(self.lease_id, least, &other);
            }
            _ => last::take(&self.cluster, self.lease_id, least),
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
    /// Once the client no longer holds it, and its holder releases it.
    pub(crate) counted: Option<UnderWay>,
    pub(crate) runtime: Handle,
}

impl ReleaseGuard {
    pub(crate) fn new(cluster: &Arc<Cluster>, lease_id: LeaseId) -> Self {
        Self {
            cluster: Arc::clone(cluster),
            lease_id,
            is_armed: true,
            least: None,
            counted: None,
            runtime: Handle::current(),
        }
    }

    /// One for the same lease that does nothing.
    pub(crate) fn disarmed(&self) -> Self {
        let (cluster, runtime) = (Arc::clone(&self.cluster), self.runtime.clone());
        Self { cluster, lease_id: self.lease_id, is_armed: false, least: self.least, counted: None, runtime }
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
