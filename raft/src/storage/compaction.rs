//! Log compaction: takes a snapshot whenever the log has grown enough, and then truncates the log behind it.
//!
//! Every node does so by itself. It takes a snapshot once the log has grown by
//! [`Settings::snapshot_after_bytes`](crate::Settings) since the last one, or by half of that one's size, so that it does
//! not write a large table for every small change. The members start out of step, so that not all are busy at once. It also
//! takes one when the newest turned out to be damaged.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::applied::state_machine::Raft;
use crate::measure::{LOG_MEMORY_BYTES, LOG_SINCE_SNAPSHOT_BYTES};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::Generations;

/// How often the length of the log is checked.
const CHECK: Duration = Duration::from_millis(250);

/// About how many bytes of entries stay in memory though a snapshot covers them: otherwise a follower that is a little
/// behind would have to be sent the snapshot.
pub(crate) fn tail_bytes(after_bytes: u64) -> u64 {
    after_bytes / 4
}

/// The compaction of a node's log.
pub(crate) struct Compaction {
    pub(crate) raft: Raft,
    pub(crate) log: LogStore,
    pub(crate) generations: Arc<Generations>,
    /// How many bytes of log make a snapshot due.
    pub(crate) after_bytes: u64,
    /// How many more the first one takes.
    pub(crate) head_start_bytes: u64,
}

impl Compaction {
    /// Runs until Raft stops.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(CHECK);
        let mut known = self.generations.newest().and_then(|newest| newest.head().meta.last_log_id);
        loop {
            ticks.tick().await;
            let taken = self.raft.metrics().borrow_watched().snapshot;
            if taken > known
                && let Some(taken) = taken
            {
                known = Some(taken);
                self.head_start_bytes = 0;
                let (tail, older) = (tail_bytes(self.after_bytes), self.generations.keeps_older());
                if let Some(upto) = self.log.snapshot_taken(taken, tail, older)
                    && self.raft.trigger().purge_log(upto.index()).await.is_err()
                {
                    return;
                }
            }
            let since = self.log.since_snapshot();
            LOG_SINCE_SNAPSHOT_BYTES.get().set(since as f64);
            LOG_MEMORY_BYTES.get().set(self.log.bytes_in_memory() as f64);
            if (since >= self.due() || self.generations.is_damaged())
                && self.raft.trigger().snapshot().await.is_err()
            {
                return;
            }
        }
    }

    fn due(&self) -> u64 {
        let bytes = self.generations.newest().map_or(0, |newest| newest.head().bytes);
        self.after_bytes.max(bytes / 2) + self.head_start_bytes
    }
}
