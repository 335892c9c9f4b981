//! Packs queued commands into log entries.
//!
//! Nothing waits for a batch to fill: commands that queue up while entries are in flight go into the next entry. A few
//! entries may be in flight at once, so that replication and the disk overlap.
//!
//! An entry that raises the rules is alone in flight. So every other entry is under the rules of the table, and a raise that
//! Raft rejects leaves no trace.
//!
//! A command that the rules of its entry do not have is [withheld](Withheld) from it, and refused with the others' outcomes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{iter, mem};

use futures_util::FutureExt;
use metrics::Histogram;
use openraft::alias::CommittedLeaderIdOf;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use ringfence_lease::{Outcome, Owner, Request};
use ringfence_wire::RulesRange;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::applied::state_machine::Raft;
use crate::applied::table::Applied;
use crate::consensus::{Completion, Consensus, EncodedBatch};
use crate::gate::{Since, Withheld};
use crate::measure::PROPOSAL_SECONDS;
use crate::propose::batch::Batch;
use crate::reply::Reply;
use crate::storage::log_store::LogStore;
use crate::time::leading::{Leading, Stamp};

/// The maximum number of commands in an entry, unless a single request has more.
const MAX_COMMANDS: usize = 1_000;
/// The maximum number of keys that an entry touches, unless a single request touches more: every node applies an entry in
/// one step.
const MAX_KEYS: usize = 4_096;
/// The maximum size of an entry in bytes, unless a single request is larger.
const MAX_BYTES: usize = 1 << 20;
/// The maximum number of entries in flight.
const MAX_IN_FLIGHT: usize = 8;
/// The maximum number of queued requests, and their size in bytes; more are rejected.
const MAX_QUEUED: usize = 65_536;
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Why commands have no outcome.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Certainly not done: they are in no log and never will be.
    Rejected(Request),
    /// They may have been committed, or may still be.
    Unknown,
}

/// The outcomes of the commands of one request, in their order.
pub(crate) type Proposed = Result<Vec<Outcome>, Failure>;

/// A request that was admitted to the queue.
pub(crate) struct Proposal {
    request: Request,
    reply: Reply<Proposed>,
    share: QueueShare,
    raise: Option<Raise>,
}

/// Rules to raise to, if they are not in use yet, in the term in which the members were asked whether they support them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raise {
    pub(crate) rules: u8,
    pub(crate) term: u64,
}

/// The totals of the queued requests.
#[derive(Default)]
struct Queued {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// A request's share of the queue, returned when dropped.
struct QueueShare {
    queued: Arc<Queued>,
    bytes: usize,
}

impl QueueShare {
    /// `None` if there is no room.
    fn take(queued: &Arc<Queued>, bytes: usize) -> Option<Self> {
        let take = |counter: &AtomicUsize, more: usize, most: usize| {
            let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        };
        if !take(&queued.requests, 1, MAX_QUEUED) {
            return None;
        }
        if !take(&queued.bytes, bytes, MAX_QUEUED_BYTES) {
            queued.requests.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self { queued: Arc::clone(queued), bytes })
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.queued.requests.fetch_sub(1, Ordering::Relaxed);
        self.queued.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where requests are queued. Clones share the queue.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: mpsc::UnboundedSender<Vec<Proposal>>,
    queued: Arc<Queued>,
}

impl Proposer {
    /// The queue, and the task that packs and proposes, which ends with the last clone of the queue and never before.
    pub(crate) fn new(
        raft: Raft,
        leading: Arc<Leading>,
        log: LogStore,
        applied: Applied,
        max_lease_bytes: u64,
        since: Since,
    ) -> (Self, impl Future<Output = ()>) {
        let (queue, messages) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        let seconds = PROPOSAL_SECONDS.get();
        let requests = Requests { messages, received: VecDeque::new() };
        let packer =
            Packer { raft, leading, log, applied, max_lease_bytes, since, permits, requests, seconds };
        (Self { queue, queued: Arc::default() }, packer.run())
    }

    /// Returns the outcomes of a request's commands in order. Without commands, proposes an entry that only carries the time.
    pub(crate) async fn propose(&self, request: Request) -> Proposed {
        self.propose_with(None, request).await
    }

    /// As [`Proposer::propose`], in an entry that raises the rules as well.
    pub(crate) async fn propose_with(&self, raise: Option<Raise>, request: Request) -> Proposed {
        let (reply, outcomes) = Reply::new(None);
        let proposal = self.admit(request, reply).map_err(Failure::Rejected)?;
        self.send(vec![Proposal { raise, ..proposal }]);
        outcomes.await.unwrap_or(Err(Failure::Unknown))
    }

    /// A request for the queue; returns it if the queue is full.
    pub(crate) fn admit(&self, request: Request, reply: Reply<Proposed>) -> Result<Proposal, Request> {
        match QueueShare::take(&self.queued, request.size_hint()) {
            Some(share) => Ok(Proposal { request, reply, share, raise: None }),
            None => Err(request),
        }
    }

    /// Queues requests.
    pub(crate) fn send(&self, proposals: Vec<Proposal>) {
        if proposals.is_empty() {
            return;
        }
        if let Err(mpsc::error::SendError(proposals)) = self.queue.send(proposals) {
            for Proposal { request, reply, .. } in proposals {
                reply.send(Err(Failure::Rejected(request)));
            }
        }
    }
}

/// Queued requests.
struct Requests {
    messages: mpsc::UnboundedReceiver<Vec<Proposal>>,
    /// The rest of the last message received.
    received: VecDeque<Proposal>,
}

impl Requests {
    /// Waits for a request; `false` if the queue was closed.
    async fn wait(&mut self) -> bool {
        while self.received.is_empty() {
            let Some(message) = self.messages.recv().await else { return false };
            self.received = message.into();
        }
        true
    }

    /// The next request, if there is one and it `fits`. Skips requests that nobody waits for any more: a client whose outcome
    /// is unknown repeats its request.
    fn next_if(&mut self, fits: impl FnOnce(&Proposal) -> bool) -> Option<Proposal> {
        loop {
            if self.received.front().is_some_and(|first| first.reply.is_closed()) {
                self.received.pop_front();
            } else if self.received.is_empty() {
                // `try_recv` would park this thread while another is in the middle of sending.
                self.received = self.messages.recv().now_or_never()??.into();
            } else {
                return self.received.front().is_some_and(fits).then(|| self.received.pop_front())?;
            }
        }
    }
}

struct Packer {
    raft: Raft,
    leading: Arc<Leading>,
    log: LogStore,
    /// To count the keys that commands touch.
    applied: Applied,
    /// How many bytes all leases may take while this node leads.
    max_lease_bytes: u64,
    since: Since,
    permits: Arc<Semaphore>,
    requests: Requests,
    /// Durations of entries.
    seconds: Histogram,
}

impl Packer {
    async fn run(mut self) {
        while self.requests.wait().await {
            let mut permit = self.permits(1).await;
            let (raise, mut packed, mut callers) = self.pack();
            if callers.is_empty() {
                continue;
            }
            if raise.is_some() {
                permit.merge(self.permits(MAX_IN_FLIGHT as u32 - 1).await);
            }
            // While this node's disk hangs, the others may go on to commit entries.
            let stamp = if self.log.is_full() { None } else { self.leading.stamp() };
            let Some(stamp) = stamp else {
                reject(packed, callers);
                continue;
            };
            if raise.is_some_and(|raise| raise.term != stamp.term) {
                self.leading.settled(stamp);
                reject(packed, callers);
                continue;
            }
            // A leader has applied all raises by now: those of earlier terms, and its own.
            let rules = self.applied.lock().table.rules().max(raise.map_or(0, |raise| raise.rules));
            if !self.withhold(&mut packed, &mut callers, rules) {
                self.leading.settled(stamp);
                complete(iter::empty(), callers);
                continue;
            }
            let (at_ms, max_bytes) = (stamp.at_ms, self.max_lease_bytes);
            let batch = Batch { rules, at_ms, max_bytes, floor: stamp.floor, requests: packed }.encode();
            let begun = Instant::now();
            let settle = Settle {
                leading: Arc::clone(&self.leading),
                stamp,
                begun,
                callers,
                batch: batch.clone(),
                seconds: self.seconds.clone(),
            };
            let completion = Completion(Box::new(move |result| {
                settle.run(result);
                drop(permit);
            }));
            let write = self.raft.write(batch).with_leader(CommittedLeaderIdOf::<Consensus>::new(stamp.term));
            if write.responder(completion).await.is_err() {
                // The completion was dropped, so its requests fail as unknown.
                tracing::debug!("raft has stopped");
            }
        }
    }

    async fn permits(&self, count: u32) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.permits).acquire_many_owned(count).await;
        permits.expect("the semaphore is never closed")
    }

    /// Takes out of the requests of `callers` what `rules` do not have. Whether anything is left to propose.
    fn withhold(&self, requests: &mut [Request], callers: &mut [Caller], rules: u8) -> bool {
        for (request, caller) in requests.iter_mut().zip(callers.iter_mut()) {
            caller.withheld = Withheld::take(request, rules, rules, self.since);
            caller.count = request.commands.len();
        }
        !callers.iter().all(|caller| caller.count == 0 && !caller.withheld.is_empty())
    }

    /// Takes as many queued requests as fit into one entry, at least one if any is left: what it raises, the requests, and
    /// the caller of each. A request that raises the rules has an entry of its own.
    fn pack(&mut self) -> (Option<Raise>, Vec<Request>, Vec<Caller>) {
        let state = self.applied.lock();
        let mut raise = None;
        let (mut bytes, mut keys, mut count) = (0, 0, 0);
        let (mut packed, mut callers) = (Vec::new(), Vec::new());
        let mut fits = |proposal: &Proposal| {
            let is_first = count == 0;
            let Request { by, commands } = &proposal.request;
            let by = by.as_ref().map(|owner| &owner.name);
            bytes += proposal.share.bytes;
            keys += commands.iter().map(|command| state.table.keys_of(by, command)).sum::<usize>();
            count += commands.len();
            is_first || count <= MAX_COMMANDS && bytes <= MAX_BYTES && keys <= MAX_KEYS
        };
        while raise.is_none()
            && let Some(proposal) = self.requests.next_if(|next| {
                let may_join = callers.is_empty() || next.raise.is_none();
                may_join && fits(next)
            })
        {
            let Proposal { request, reply, share: _, raise: asked } = proposal;
            raise = asked;
            callers.push(Caller {
                by: request.by.clone(),
                count: request.commands.len(),
                withheld: Withheld::default(),
                reply,
            });
            packed.push(request);
        }
        (raise, packed, callers)
    }
}

/// Who waits for a request of an entry.
struct Caller {
    by: Option<Owner>,
    /// How many commands of it are in the entry.
    count: usize,
    /// Those that are not.
    withheld: Withheld,
    reply: Reply<Proposed>,
}

/// Completes the requests of one entry.
struct Settle {
    leading: Arc<Leading>,
    stamp: Stamp,
    begun: Instant,
    callers: Vec<Caller>,
    batch: EncodedBatch,
    seconds: Histogram,
}

impl Settle {
    fn run(mut self, result: ClientWriteResult<Consensus>) {
        let callers = mem::take(&mut self.callers);
        match result {
            Ok(response) => {
                self.seconds.record(self.begun.elapsed());
                complete(response.data.into_iter(), callers);
            }
            // openraft: "rejected before its entry was appended".
            Err(ClientWriteError::ForwardToLeader(_)) => {
                match Batch::decode(&self.batch, RulesRange { oldest: 0, newest: u8::MAX }) {
                    Ok(batch) => reject(batch.requests, callers),
                    Err(error) => tracing::error!(%error, "an entry made by this node cannot be read back"),
                }
            }
            // Dropping the callers reports unknown.
            Err(error) => tracing::info!(%error, "the outcome of an entry is unknown"),
        }
    }
}

/// Whether it was run or not: no stamp may hold up the clock for ever.
impl Drop for Settle {
    fn drop(&mut self) {
        self.leading.settled(self.stamp);
    }
}

/// `outcomes` are those of the commands in the entry.
fn complete(mut outcomes: impl Iterator<Item = Outcome>, callers: Vec<Caller>) {
    for Caller { count, withheld, reply, .. } in callers {
        reply.send(Ok(withheld.refuse(outcomes.by_ref().take(count))));
    }
}

/// `requests` have the commands that were not withheld.
fn reject(requests: Vec<Request>, callers: Vec<Caller>) {
    let mut commands = requests.into_iter().flat_map(|request| request.commands);
    for Caller { by, count, withheld, reply } in callers {
        let commands = withheld.put_back(commands.by_ref().take(count));
        reply.send(Err(Failure::Rejected(Request { by, commands })));
    }
}

#[cfg(test)]
mod tests;
