//! openraft's state machine over the lease table.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use ringfence_lease::{LeaseTable, Outcome};

use crate::applied::Applied;
use crate::batch::Batch;
use crate::consensus::{
    Consensus, EncodedBatch, LogId, Member, NodeId, Snapshot, SnapshotMeta, StoredMembership,
};
use crate::snapshot;

/// openraft over this state machine.
pub(crate) type Raft = openraft::Raft<Consensus, StateMachine>;

/// Applies committed entries to the shared [`Applied`] state. A snapshot is one file beside the log.
pub(crate) struct StateMachine {
    applied: Applied,
    dir: PathBuf,
}

impl StateMachine {
    /// Over `applied`, with the snapshot in the folder `dir`, which exists.
    pub(crate) fn new(applied: Applied, dir: PathBuf) -> Self {
        Self { applied, dir }
    }

    /// The entry's outcome. An entry that cannot be read stops the node: skipping it would let replicas diverge.
    fn apply_entry(
        &self,
        payload: EntryPayload<EncodedBatch, NodeId, Member>,
        log_id: LogId,
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
                state.apply(batch)
            }
        };
        state.last_applied = Some(log_id);
        Ok(outcomes)
    }
}

impl RaftStateMachine<Consensus> for StateMachine {
    type SnapshotData = Bytes;
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
            let outcomes = self.apply_entry(entry.payload, entry.log_id)?;
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
            dir: self.dir.clone(),
            meta: SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership.clone() },
            table: state.table.snapshot(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: Bytes) -> Result<(), io::Error> {
        let table = LeaseTable::restore(&data[..])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if snapshot::load(&self.dir)?.is_none_or(|current| current.meta != *meta) {
            snapshot::save(&self.dir, meta, &data)?;
        }
        {
            let mut state = self.applied.lock();
            state.replace(table);
            state.last_applied = meta.last_log_id;
            state.membership = meta.last_membership.clone();
        }
        self.applied.announce();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        snapshot::load(&self.dir)
    }
}

/// A view of the state at one instant, to be written as a snapshot.
pub(crate) struct Builder {
    dir: PathBuf,
    meta: SnapshotMeta,
    table: Vec<u8>,
}

impl RaftSnapshotBuilder<Consensus> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let data = Bytes::from(std::mem::take(&mut self.table));
        snapshot::save(&self.dir, &self.meta, &data)?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: data })
    }
}
