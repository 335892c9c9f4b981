//! What releases a lease that nobody has any more.

use std::sync::Arc;

use ringfence_wire::LeaseId;
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::outlive::Least;

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
        if !self.is_armed {
            return;
        }
        match self.least.filter(|least| !least.is_over()) {
            Some(least) => self.cluster.release_later(self.lease_id, least, &self.runtime),
            None => self.cluster.release_in_background(self.lease_id, &self.runtime),
        }
    }
}
