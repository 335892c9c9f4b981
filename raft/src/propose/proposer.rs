//! Packs queued commands into log entries.
//!
//! Nothing lingers: whatever has queued up while earlier entries were on their way goes into the next one. A few
//! entries may be on their way at once, so that replication and the disk overlap.

use std::sync::Arc;

use metrics::Histogram;
use openraft::alias::CommittedLeaderIdOf;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use ringfence_lease::{Command, Outcome};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::applied::state_machine::Raft;
use crate::applied::table::Applied;
use crate::consensus::{Completion, Consensus, EncodedBatch};
use crate::propose::batch::Batch;
use crate::storage::log_store::LogStore;
use crate::time::leading::{Leading, Stamp};

/// The most commands of one entry, unless a single request has more.
const MAX_COMMANDS: usize = 1_000;
/// The most keys that the commands of one entry touch, unless a single request touches more: every node applies an entry in
/// one step.
const MAX_KEYS: usize = 4_096;
/// An entry that has grown to about this size takes no more commands.
const MAX_BYTES: usize = 1 << 20;
/// Entries on their way at once.
const MAX_IN_FLIGHT: usize = 8;
/// Requests that may queue up; more are refused at once.
const MAX_QUEUED: usize = 65_536;

/// Why commands have no outcome.
#[derive(Debug)]
pub(crate) enum Failure {
    /// They are in no log and never will be.
    Rejected(Vec<Command>),
    /// They may or may not have been, or be still, committed.
    Unknown,
}

type Reply = oneshot::Sender<Result<Vec<Outcome>, Failure>>;

struct Proposal {
    commands: Vec<Command>,
    reply: Reply,
}

/// Where commands are queued. Clones share the queue.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
}

impl Proposer {
    /// The queue, and the task that packs and proposes, which ends with the last clone of the queue and never before.
    pub(crate) fn new(
        raft: Raft,
        leading: Arc<Leading>,
        log: LogStore,
        applied: Applied,
    ) -> (Self, impl Future<Output = ()>) {
        let (queue, proposals) = mpsc::channel(MAX_QUEUED);
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let seconds = metrics::histogram!("ringfence_raft_proposal_duration_seconds");
        let packer = Packer { raft, leading, log, applied, permits, proposals, next: None, seconds };
        (Self { queue }, packer.run())
    }

    /// The outcomes of `commands`, in their order. With no commands, an entry that only tells the time.
    pub(crate) async fn propose(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, Failure> {
        let (reply, outcome) = oneshot::channel();
        match self.queue.try_send(Proposal { commands, reply }) {
            Ok(()) => outcome.await.unwrap_or(Err(Failure::Unknown)),
            Err(mpsc::error::TrySendError::Full(proposal) | mpsc::error::TrySendError::Closed(proposal)) => {
                Err(Failure::Rejected(proposal.commands))
            }
        }
    }
}

struct Packer {
    raft: Raft,
    leading: Arc<Leading>,
    log: LogStore,
    /// Tells how much commands cost.
    applied: Applied,
    permits: Arc<Semaphore>,
    proposals: mpsc::Receiver<Proposal>,
    /// Taken from the queue, but too large for the entry before.
    next: Option<Proposal>,
    /// What is measured of each entry.
    seconds: Histogram,
}

impl Packer {
    async fn run(mut self) {
        loop {
            let first = match self.next.take() {
                Some(proposal) => proposal,
                None => match self.proposals.recv().await {
                    Some(proposal) => proposal,
                    None => return,
                },
            };
            let permit =
                Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
            let (commands, replies) = self.pack(first);
            // The others may commit entries for as long as the disk of this node hangs.
            let stamp = if self.log.is_full() { None } else { self.leading.stamp() };
            let Some(stamp) = stamp else {
                reject(commands, replies);
                continue;
            };
            let batch = Batch { at_ms: stamp.at_ms, commands }.encode();
            let begun = Instant::now();
            let settle = Settle {
                leading: Arc::clone(&self.leading),
                stamp,
                begun,
                replies,
                batch: batch.clone(),
                seconds: self.seconds.clone(),
            };
            let completion = Completion(Box::new(move |result| {
                settle.run(result);
                drop(permit);
            }));
            let write = self.raft.write(batch).with_leader(CommittedLeaderIdOf::<Consensus>::new(stamp.term));
            if write.responder(completion).await.is_err() {
                // The completion was dropped: its requests learn that their fate is unknown.
                tracing::debug!("raft has stopped");
            }
        }
    }

    /// The commands of `first` and of as many queued requests as fit, and how many of them belong to whom.
    fn pack(&mut self, first: Proposal) -> (Vec<Command>, Vec<(usize, Reply)>) {
        let state = self.applied.lock();
        // How many bytes the commands of a request take in the log, and how many keys they touch.
        let size_of = |proposal: &Proposal| {
            proposal.commands.iter().fold((0, 0), |(bytes, keys), command| {
                (bytes + command.size_hint(), keys + state.table.keys_of(command))
            })
        };
        let (mut bytes, mut keys) = size_of(&first);
        let mut commands = first.commands;
        let mut replies = vec![(commands.len(), first.reply)];
        while bytes < MAX_BYTES && commands.len() < MAX_COMMANDS {
            let Ok(proposal) = self.proposals.try_recv() else { break };
            let (more_bytes, more_keys) = size_of(&proposal);
            let is_too_large = commands.len() + proposal.commands.len() > MAX_COMMANDS
                || bytes + more_bytes > MAX_BYTES
                || keys + more_keys > MAX_KEYS;
            if is_too_large {
                self.next = Some(proposal);
                break;
            }
            (bytes, keys) = (bytes + more_bytes, keys + more_keys);
            replies.push((proposal.commands.len(), proposal.reply));
            commands.extend(proposal.commands);
        }
        (commands, replies)
    }
}

/// Hands the outcomes of one entry to those who asked.
struct Settle {
    leading: Arc<Leading>,
    stamp: Stamp,
    begun: Instant,
    replies: Vec<(usize, Reply)>,
    batch: EncodedBatch,
    seconds: Histogram,
}

impl Settle {
    fn run(mut self, result: ClientWriteResult<Consensus>) {
        let replies = std::mem::take(&mut self.replies);
        match result {
            Ok(response) => {
                self.seconds.record(self.begun.elapsed());
                let mut outcomes = response.data.into_iter();
                for (count, reply) in replies {
                    // The caller may have gone.
                    let _ = reply.send(Ok(outcomes.by_ref().take(count).collect()));
                }
            }
            // "Rejected before its entry was appended."
            Err(ClientWriteError::ForwardToLeader(_)) => match Batch::decode(&self.batch) {
                Ok(batch) => reject(batch.commands, replies),
                Err(error) => tracing::error!(%error, "an entry made by this node cannot be read back"),
            },
            // Dropping the replies says: unknown.
            Err(error) => tracing::info!(%error, "the fate of an entry is unknown"),
        }
    }
}

/// Run or not: no stamp may hold up the clock for ever.
impl Drop for Settle {
    fn drop(&mut self) {
        self.leading.settled(self.stamp);
    }
}

fn reject(commands: Vec<Command>, replies: Vec<(usize, Reply)>) {
    let mut commands = commands.into_iter();
    for (count, reply) in replies {
        let _ = reply.send(Err(Failure::Rejected(commands.by_ref().take(count).collect())));
    }
}
