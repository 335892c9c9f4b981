//! openraft's state machine over the lease table.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use ringfence_lease::{FrozenTable, Outcome};
use ringfence_wire::RulesRange;
use tokio::time::Instant;

use crate::applied::table::Applied;
use crate::consensus::{Consensus, EncodedBatch, LogId, Member, NodeId, SnapshotMeta, StoredMembership};
use crate::measure::SNAPSHOT_SECONDS;
use crate::propose::batch::Batch;
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::generation::{Generation, Snapshot};
use crate::storage::snapshots::{Generations, with_descriptors};

/// How long entries are applied before the other tasks of the thread have their turn.
const TURN: Duration = Duration::from_millis(5);

/// openraft over this state machine.
pub(crate) type Raft = openraft::Raft<Consensus, StateMachine>;

/// Applies committed entries to the shared [`Applied`] state, and keeps snapshots of it.
pub(crate) struct StateMachine {
    applied: Applied,
    log: LogStore,
    generations: Arc<Generations>,
    /// The rules of the entries that can be applied.
    supported: RulesRange,
}

impl StateMachine {
    pub(crate) fn new(
        applied: Applied,
        log: LogStore,
        generations: Arc<Generations>,
        supported: RulesRange,
    ) -> Self {
        Self { applied, log, generations, supported }
    }

    /// Applies an entry and returns its outcomes; `is_own`: this node proposed it. An entry that cannot be decoded stops the
    /// node: skipping it would let replicas diverge.
    fn apply_entry(
        &self,
        payload: EntryPayload<EncodedBatch, NodeId, Member>,
        log_id: LogId,
        is_own: bool,
    ) -> io::Result<Vec<Outcome>> {
        let (batch, membership) = match payload {
            EntryPayload::Blank => (None, None),
            EntryPayload::Membership(membership) => (None, Some(membership)),
            EntryPayload::Normal(batch) => {
                let batch = Batch::decode(&batch, self.supported);
                (Some(batch.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?), None)
            }
        };
        let mut state = self.applied.lock();
        if let Some(membership) = membership {
            state.membership = StoredMembership::new(Some(log_id), membership);
        }
        let outcomes = batch.map_or_else(Vec::new, |batch| state.apply(batch, is_own));
        state.witness.end_entry(log_id);
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
        let mut turn = Instant::now();
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let outcomes = self.apply_entry(entry.payload, entry.log_id, responder.is_some())?;
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
            self.applied.announce();
            // An entry is a bounded step. Many of them, as those that are committed together or a long log, must not starve heartbeats.
            if turn.elapsed() >= TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            generations: Arc::clone(&self.generations),
            log: self.log.clone(),
            applied: self.applied.clone(),
            view: Some(view(&self.applied)),
        }
    }

    /// The snapshot makes the rest of the old log void, so a truncation that was queued before must be on disk first.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: Arc<Generation>,
    ) -> Result<(), io::Error> {
        let started = Instant::now();
        let table = with_descriptors(|| self.generations.table(&data)).await?;
        self.log.barrier().await?;
        with_descriptors(|| self.generations.publish(Arc::clone(&data), false)).await?;
        let index = meta.last_log_id.map(|id| id.index());
        tracing::info!(index, live_leases = table.live(), took = ?started.elapsed(), "snapshot installed");
        let replaced = self.applied.replace(table, meta);
        // Freeing a million leases takes a while.
        self.generations.discard(replaced);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let newest = self.generations.newest();
        Ok(newest.map(|newest| Snapshot { meta: newest.head().meta.clone(), snapshot: newest }))
    }
}

/// The state at one instant.
fn view(applied: &Applied) -> (SnapshotMeta, FrozenTable) {
    let state = applied.lock();
    let meta = SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership.clone() };
    (meta, state.table.freeze())
}

/// Writes a view of the state as a snapshot.
pub(crate) struct Builder {
    generations: Arc<Generations>,
    log: LogStore,
    applied: Applied,
    /// `None` once it is written.
    view: Option<(SnapshotMeta, FrozenTable)>,
}

impl Builder {
    async fn build(
        generations: &Arc<Generations>,
        log: &LogStore,
        (meta, table): (SnapshotMeta, FrozenTable),
    ) -> io::Result<Arc<Generation>> {
        let made = Arc::new(generations.write(meta, table).await?);
        // openraft applies entries that are committed elsewhere and not on this disk yet. After a power cut now, the log
        // would end before the snapshot, or in entries that were truncated since: openraft refuses both.
        log.barrier().await?;
        generations.publish(Arc::clone(&made), true).await?;
        Ok(made)
    }
}

impl RaftSnapshotBuilder<Consensus> for Builder {
    type SnapshotData = Arc<Generation>;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let started = Instant::now();
        // A retry takes the state at that time: the old view would keep a copy of all that changes.
        let made = with_descriptors(|| {
            let view = self.view.take().unwrap_or_else(|| view(&self.applied));
            Self::build(&self.generations, &self.log, view)
        })
        .await?;
        let (bytes, took) = (made.head().bytes, started.elapsed());
        SNAPSHOT_SECONDS.get().record(took.as_secs_f64());
        tracing::info!(index = made.index(), bytes, ?took, "snapshot taken");
        let snapshot = self.generations.newest().unwrap_or_else(|| Arc::clone(&made));
        Ok(Snapshot { meta: made.head().meta.clone(), snapshot })
    }
}

#[cfg(test)]
pub(crate) mod tests;
