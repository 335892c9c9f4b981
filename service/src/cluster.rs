//! What a node says of itself and of the cluster, and what operators have the cluster do.

use std::sync::Arc;

use ringfence_raft::MembersError;
use ringfence_wire::{Backup, ClusterStatus, Revision, Upgraded};

use crate::failure::Failure;
use crate::order::Order;
use crate::rights::Allowed;
use crate::service::Service;

impl Service {
    /// Has the leader carry out `order`. Returns what an upgrade came to.
    ///
    /// # Errors
    /// The leader refuses it, or there is no answer.
    pub async fn order(&self, order: Allowed<Order>) -> Result<Option<Upgraded>, Failure> {
        let (handle, order) = (&self.handle, order.into_inner());
        #[expect(clippy::disallowed_methods, reason = "the order is allowed")]
        match order {
            Order::Add { id, peer } => handle.add_member(id, peer).await?,
            Order::Remove { id, force: false } => handle.remove_member(id).await?,
            Order::Remove { id, force: true } => handle.force_remove_member(id).await?,
            Order::Transfer { to } => handle.transfer_leadership(to).await?,
            Order::Upgrade { to, check } => return Ok(Some(handle.upgrade(to, check).await?)),
        }
        Ok(None)
    }

    /// How this node sees itself and the cluster, without what the process knows besides.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn status(&self) -> Result<ClusterStatus, Failure> {
        Ok(self.handle.try_status()?)
    }

    /// What a new cluster has to know of this one.
    ///
    /// # Errors
    /// No leader answers, or the cluster has no revision yet.
    pub async fn backup(&self) -> Result<Backup, Failure> {
        self.catch_up().await?;
        let (first_revision, revision) =
            self.handle.try_view(|table| (table.first_revision(), table.revision()))?;
        if revision == Revision(0) {
            return Err(Failure::NotStarted);
        }
        let cluster_id = self.handle.cluster_id();
        Ok(Backup { format: Backup::FORMAT, cluster_id, first_revision, revision })
    }

    /// Whether this node can serve: it has contact with a leader that gets on.
    pub async fn is_ready(&self) -> bool {
        self.handle.is_ready().await
    }

    /// The URL of the leader's HTTP listener, if both are known. Takes no lock.
    pub fn leader_url(&self) -> Option<Arc<String>> {
        self.handle.leader_url()
    }

    /// The cluster's id, once there is one.
    pub fn cluster_id(&self) -> Option<String> {
        let id = self.handle.cluster_id();
        (!id.is_nil()).then(|| id.to_string())
    }

    /// The rules that this node's table uses.
    pub fn rules(&self) -> u8 {
        self.handle.rules()
    }

    /// How many other nodes have on disk what was answered, at least.
    pub fn copies(&self) -> usize {
        self.handle.voters().iter().map(|voters| voters.len() / 2).max().unwrap_or(0)
    }

    /// Sets the gauges of this node's Raft and table.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn measure(&self) -> Result<(), Failure> {
        Ok(self.handle.try_measure()?)
    }
}

impl From<MembersError> for Failure {
    fn from(error: MembersError) -> Self {
        match error {
            MembersError::Refused(reason) => Self::OrderRefused(reason),
            MembersError::Unanswered(unanswered) => unanswered.into(),
        }
    }
}
