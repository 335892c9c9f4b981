//! Keeping the log short: a snapshot whenever it has grown enough, and then away with what no one needs.
//!
//! Every node does so for itself. A snapshot is taken once the log has grown by
//! [`Settings::snapshot_after_bytes`](crate::Settings) since the last one, or by half of that one's size: so a large table is
//! not written out for every little change. The members start out of step, for not all of them should be busy with it at once.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::applied::state_machine::Raft;
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::Generations;

/// How often it is looked at how long the log is.
const LOOK: Duration = Duration::from_millis(250);

/// About how many bytes of entries stay in memory though a snapshot covers them: for followers that are a little behind,
/// which would have to be sent the snapshot otherwise.
pub(crate) fn tail_bytes(after_bytes: u64) -> u64 {
    after_bytes / 4
}

/// How the log of a node is kept short.
pub(crate) struct Compaction {
    pub(crate) raft: Raft,
    pub(crate) log: LogStore,
    pub(crate) generations: Arc<Generations>,
    /// How many bytes of log are enough for a snapshot.
    pub(crate) after_bytes: u64,
    /// How many more have to come before the first.
    pub(crate) head_start_bytes: u64,
}

impl Compaction {
    /// Runs until raft ends.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(LOOK);
        let mut known = self.generations.newest().and_then(|newest| newest.head().meta.last_log_id);
        loop {
            ticks.tick().await;
            let taken = self.raft.metrics().borrow_watched().snapshot;
            if taken > known
                && let Some(taken) = taken
            {
                known = Some(taken);
                self.head_start_bytes = 0;
                if let Some(upto) = self.log.snapshot_taken(taken, tail_bytes(self.after_bytes))
                    && self.raft.trigger().purge_log(upto.index()).await.is_err()
                {
                    return;
                }
            }
            let since = self.log.since_snapshot();
            metrics::gauge!("ringfence_raft_log_since_snapshot_bytes").set(since as f64);
            if since >= self.due() && self.raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
    }

    fn due(&self) -> u64 {
        let bytes = self.generations.newest().map_or(0, |newest| newest.head().bytes);
        self.after_bytes.max(bytes / 2) + self.head_start_bytes
    }
}
