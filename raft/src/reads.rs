//! Linearizable reads: one confirmation of the leadership for all reads that wait for one.
//!
//! A read is linearizable if a quorum confirms the leader *after* the read arrived, and the local state has applied
//! what was committed by then. So reads that arrive during one confirmation share the next one: see [`confirm`].

mod confirm;

use std::sync::Arc;

use futures_util::FutureExt;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::applied::state_machine::Raft;
use crate::applied::table::Applied;
use crate::consensus::NodeId;
use crate::peer::{Peers, ReadPoint};
use crate::reply::Reply;
use crate::time::leading::Leading;
use crate::unanswered::{RETRY, TIMEOUT, Unanswered};
use confirm::confirm;

/// The leader's clock in milliseconds, when this node's state is as new as the cluster's was after the read arrived.
pub(crate) type Read = Result<u64, Unanswered>;

/// The queue of reads. Clones share it.
#[derive(Clone)]
pub(crate) struct Reads {
    queue: mpsc::UnboundedSender<Vec<Reply<Read>>>,
    read_index: ReadIndex,
}

/// Confirms reads.
#[derive(Clone)]
pub(crate) struct ReadIndex {
    pub(crate) id: NodeId,
    pub(crate) raft: Raft,
    pub(crate) applied: Applied,
    pub(crate) leading: Arc<Leading>,
    pub(crate) peers: Arc<Peers>,
}

impl Reads {
    /// The queue, and the task that confirms, which ends with the last clone of the queue and never before.
    pub(crate) fn new(read_index: ReadIndex) -> (Self, impl Future<Output = ()>) {
        let (queue, mut waiting) = mpsc::unbounded_channel::<Vec<Reply<Read>>>();
        let own = read_index.clone();
        let task = async move {
            while let Some(mut replies) = waiting.recv().await {
                // `try_recv` would park this thread while another is in the middle of sending.
                while let Some(Some(more)) = waiting.recv().now_or_never() {
                    replies.extend(more);
                }
                let result = read_index.linearize().await;
                for reply in replies {
                    reply.send(result);
                }
            }
        };
        (Self { queue, read_index: own }, task)
    }

    /// Confirms with a quorum that this node leads; `None` if it does not, or no quorum answers in time.
    pub(crate) async fn confirm_here(&self) -> Option<ReadPoint> {
        self.read_index.confirm_here().await
    }

    pub(crate) async fn linearize(&self) -> Read {
        let (reply, read) = Reply::new(None);
        self.send(vec![reply]);
        Self::answered(read).await
    }

    /// Queues reads.
    pub(crate) fn send(&self, reads: Vec<Reply<Read>>) {
        if !reads.is_empty() {
            // If the task has ended, the replies are dropped, which `answered` reports.
            let _ = self.queue.send(reads);
        }
    }

    /// The answer to a read that was queued just now.
    pub(crate) async fn answered(read: oneshot::Receiver<Read>) -> Read {
        // The time starts here: a failing batch before this one must not use it up.
        match timeout(TIMEOUT, read).await {
            Ok(Ok(result)) => result,
            _ => Err(Unanswered::Unavailable),
        }
    }
}

/// Waits until the leader, as this node knows it, is as `wanted`.
pub(crate) async fn leader_is(raft: &Raft, wanted: impl Fn(Option<NodeId>) -> bool) {
    let mut metrics = raft.server_metrics();
    while !wanted(metrics.borrow_watched().current_leader) && metrics.changed().await.is_ok() {}
}

impl ReadIndex {
    async fn linearize(&self) -> Result<u64, Unanswered> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Ok(Some(point)) = timeout_at(deadline, self.confirm(deadline)).await {
                let mut progress = self.applied.progress();
                let reached =
                    timeout_at(deadline, progress.wait_for(|applied| *applied >= Some(point.log_id))).await;
                return if matches!(reached, Ok(Ok(_))) {
                    Ok(point.now_ms)
                } else {
                    Err(Unanswered::Unavailable)
                };
            }
            let next = Instant::now() + RETRY;
            if next > deadline {
                return Err(Unanswered::Unavailable);
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn confirm(&self, deadline: Instant) -> Option<ReadPoint> {
        match self.raft.current_leader().await? {
            leader if leader == self.id => self.confirm_here().await,
            leader => tokio::select! {
                biased;
                point = self.peers.read_index(leader, deadline) => point,
                // This answer may never come; the next leader can be asked.
                () = leader_is(&self.raft, |now| now != Some(leader)) => None,
            },
        }
    }

    async fn confirm_here(&self) -> Option<ReadPoint> {
        let log_id = confirm(&self.raft, &self.peers).await?;
        // The point is an entry of the term that was confirmed. The clock has to be of that term, too.
        Some(ReadPoint { log_id, now_ms: self.leading.now_ms_in(log_id.committed_leader_id().term)? })
    }
}
