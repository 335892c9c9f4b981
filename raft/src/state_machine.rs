//! openraft's state machine over the lease table.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{Stream, StreamExt};
use metrics::Histogram;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use ringfence_lease::{FrozenTable, Outcome};

use crate::applied::Applied;
use crate::batch::Batch;
use crate::consensus::{
    Consensus, EncodedBatch, LogId, Member, NodeId, Snapshot, SnapshotMeta, StoredMembership,
};
use crate::log_store::LogStore;
use crate::snapshots::generation::Generation;
use crate::snapshots::{Generations, aside};

/// openraft over this state machine.
pub(crate) type Raft = openraft::Raft<Consensus, StateMachine>;

/// Applies committed entries to the shared [`Applied`] state, and keeps snapshots of it.
pub(crate) struct StateMachine {
    applied: Applied,
    log: LogStore,
    generations: Arc<Generations>,
    /// How long snapshots take to be written.
    snapshot_seconds: Histogram,
}

impl StateMachine {
    pub(crate) fn new(applied: Applied, log: LogStore, generations: Arc<Generations>) -> Self {
        let snapshot_seconds = metrics::histogram!("ringfence_raft_snapshot_seconds");
        Self { applied, log, generations, snapshot_seconds }
    }

    /// The entry's outcome; `is_own`: this node proposed it. An entry that cannot be read stops the node: skipping it would
    /// let replicas diverge.
    fn apply_entry(
        &self,
        payload: EntryPayload<EncodedBatch, NodeId, Member>,
        log_id: LogId,
        is_own: bool,
    ) -> io::Result<Vec<Outcome>> {
        let mut state = self.applied.lock();
        let outcomes = match payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Membership(membership) => {
                state.membership = StoredMembership::new(Some(log_id), membership);
                Vec::new()
            }
            EntryPayload::Normal(batch) => {
                let batch = Batch::decode(&batch)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                state.apply(batch, is_own)
            }
        };
        state.last_applied = Some(log_id);
        Ok(outcomes)
    }
}

impl RaftStateMachine<Consensus> for StateMachine {
    type SnapshotData = Arc<Generation>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.applied.lock();
        Ok((state.last_applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Consensus>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let outcomes = self.apply_entry(entry.payload, entry.log_id, responder.is_some())?;
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
            self.applied.announce();
            // One entry is a bounded step; replaying a long log must not starve heartbeats.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let state = self.applied.lock();
        Builder {
            generations: Arc::clone(&self.generations),
            meta: SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership.clone() },
            table: Some(state.table.freeze()),
            seconds: self.snapshot_seconds.clone(),
        }
    }

    /// What the old log still held is void once the snapshot stands: so a truncation that was queued before has to be on
    /// disk first.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: Arc<Generation>,
    ) -> Result<(), io::Error> {
        let started = Instant::now();
        let table = self.generations.table(&data).await?;
        self.log.barrier().await?;
        self.generations.publish(data, false).await?;
        let index = meta.last_log_id.map(|id| id.index());
        tracing::info!(index, live_leases = table.live(), took = ?started.elapsed(), "snapshot installed");
        let replaced = self.applied.replace(table, meta);
        // Taking a million leases apart takes a while.
        tokio::spawn(aside(move || {
            drop(replaced);
            Ok(())
        }));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let newest = self.generations.newest();
        Ok(newest.map(|newest| Snapshot { meta: newest.head().meta.clone(), snapshot: newest }))
    }
}

/// A view of the state at one instant, to be written as a snapshot.
pub(crate) struct Builder {
    generations: Arc<Generations>,
    meta: SnapshotMeta,
    /// Taken out when it is written.
    table: Option<FrozenTable>,
    seconds: Histogram,
}

impl RaftSnapshotBuilder<Consensus> for Builder {
    type SnapshotData = Arc<Generation>;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let table = self.table.take().ok_or_else(|| io::Error::other("a snapshot is built once"))?;
        let started = Instant::now();
        let made = Arc::new(self.generations.write(self.meta.clone(), table).await?);
        self.generations.publish(Arc::clone(&made), true).await?;
        let (bytes, took) = (made.head().bytes, started.elapsed());
        self.seconds.record(took.as_secs_f64());
        tracing::info!(index = made.index(), bytes, ?took, "snapshot taken");
        Ok(Snapshot { meta: self.meta.clone(), snapshot: self.generations.newest().unwrap_or(made) })
    }
}
