//! Packs queued commands into log entries.
//!
//! Nothing waits for a batch to fill: commands that queue up while entries are in flight go into the next entry. A few
//! entries may be in flight at once, so that replication and the disk overlap. But together they cost at most as much as two large ones,
//! because what is packed next waits for them.
//!
//! An entry that raises the rules is alone in flight. So every other entry is under the rules of the table, and a raise that
//! Raft rejects leaves no trace.
//!
//! A command that the rules of its entry do not have is [withheld](Withheld), and refused when the others get their outcomes.
//! A request from a program that does not support these rules is rejected, however long it was in the queue.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{iter, mem};

use metrics::Histogram;
use openraft::alias::CommittedLeaderIdOf;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use ringfence_lease::{Outcome, Owner, Request};
use ringfence_wire::RulesRange;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::applied::state_machine::Raft;
use crate::applied::table::Applied;
use crate::consensus::{Completion, Consensus, EncodedBatch};
use crate::gate::{Since, Withheld};
use crate::measure::PROPOSAL_SECONDS;
use crate::members::names::check_names;
use crate::propose::asker::Asker;
use crate::propose::batch::Batch;
use crate::propose::proposal::{Failure, Origin, Proposal, Proposed, Queued, Raise};
use crate::propose::queue::Queue;
use crate::reply::Reply;
use crate::storage::log_store::LogStore;
use crate::time::leading::{Leading, Stamp};

/// The most that an entry costs, in bytes, unless a single request costs more. Every node applies an entry in one step, and what is
/// packed next waits for it.
const MAX_COST: usize = 256 << 10;
/// What a key and a command cost besides their bytes, for the time that each node takes to apply them.
const PER_KEY: usize = 256;
const PER_COMMAND: usize = 1 << 10;
/// The maximum number of entries in flight.
const MAX_IN_FLIGHT: usize = 8;
/// What the entries in flight may cost together, in units, unless a single request costs more.
const MAX_UNITS: usize = 2 * MAX_COST / UNIT;
const UNIT: usize = 16 << 10;
/// While entries are in flight for long, the queue is received this often.
const RECEIVE_EVERY: Duration = Duration::from_millis(20);

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
        let seconds = PROPOSAL_SECONDS.get().clone();
        let room = Arc::new(Semaphore::new(MAX_UNITS));
        let received = Queue::new(messages);
        let packer = Packer {
            raft,
            leading,
            log,
            applied,
            max_lease_bytes,
            since,
            permits,
            room,
            queue: received,
            seconds,
        };
        (Self { queue, queued: Arc::default() }, packer.run())
    }

    /// Returns the outcomes of a request's commands in order. Without commands, proposes an entry that only carries the time.
    pub(crate) async fn propose(&self, request: Request) -> Proposed {
        self.propose_with(None, request).await
    }

    /// As [`Proposer::propose`], in an entry that raises the rules as well.
    pub(crate) async fn propose_with(&self, raise: Option<Raise>, request: Request) -> Proposed {
        self.propose_of(Asker::NODE.into(), raise, request).await
    }

    /// As [`Proposer::propose_with`], for another origin than this node, and in the turns of that.
    pub(crate) async fn propose_of(
        &self,
        origin: Origin,
        raise: Option<Raise>,
        request: Request,
    ) -> Proposed {
        let (reply, outcomes) = Reply::new(None);
        let proposal = self.admit(origin, request, reply)?;
        self.send(vec![Proposal { raise, ..proposal }]);
        outcomes.await.unwrap_or(Err(Failure::Unknown))
    }

    /// A request for the queue, unless that is full.
    pub(crate) fn admit(
        &self,
        origin: Origin,
        request: Request,
        reply: Reply<Proposed>,
    ) -> Result<Proposal, Failure> {
        Proposal::admit(&self.queued, origin, request, reply)
    }

    /// How many requests are queued.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        self.queued.requests()
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

struct Packer {
    raft: Raft,
    leading: Arc<Leading>,
    log: LogStore,
    /// Has the keys that commands touch, and the rules in use.
    applied: Applied,
    /// How many bytes all leases may take while this node leads.
    max_lease_bytes: u64,
    since: Since,
    /// One for each entry in flight.
    permits: Arc<Semaphore>,
    /// What entries in flight may cost.
    room: Arc<Semaphore>,
    queue: Queue,
    /// Durations of entries.
    seconds: Histogram,
}

impl Packer {
    async fn run(mut self) {
        while self.queue.wait().await {
            let mut permit = self.acquire(Arc::clone(&self.permits), 1).await;
            // All that is there, as only this task takes any.
            let units = self.room.available_permits().max(1);
            let mut room = self.acquire(Arc::clone(&self.room), units as u32).await;
            self.queue.receive();
            let Packed { raise, requests: mut packed, mut callers, cost } =
                self.pack(room.num_permits() * UNIT);
            if callers.is_empty() {
                continue;
            }
            self.fit(&mut room, cost).await;
            if let Some(raise) = raise
                && !self.may_raise(raise.rules, &mut permit).await
            {
                reject(packed, callers);
                continue;
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
                drop((permit, room));
            }));
            let write = self.raft.write(batch).with_leader(CommittedLeaderIdOf::<Consensus>::new(stamp.term));
            if write.responder(completion).await.is_err() {
                // The completion was dropped, so its requests fail as unknown.
                tracing::debug!("raft has stopped");
            }
        }
    }

    /// Waits for permits. Goes on to receive the queue, so that an asker of too much is refused meanwhile.
    async fn acquire(&mut self, of: Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
        if let Ok(permits) = Arc::clone(&of).try_acquire_many_owned(count) {
            return permits;
        }
        let mut permits = pin!(of.acquire_many_owned(count));
        loop {
            match timeout(RECEIVE_EVERY, &mut permits).await {
                Ok(permits) => return permits.expect("the semaphore is never closed"),
                Err(_) => self.queue.receive(),
            }
        }
    }

    /// Brings `room` to as many units as an entry of this cost needs: takes more, or gives back the rest.
    async fn fit(&mut self, room: &mut OwnedSemaphorePermit, cost: usize) {
        let units = cost.div_ceil(UNIT).clamp(1, MAX_UNITS);
        match units.checked_sub(room.num_permits()) {
            Some(more) => room.merge(self.acquire(Arc::clone(&self.room), more as u32).await),
            None => drop(room.split(room.num_permits() - units)),
        }
    }

    /// Waits until no entry is in flight, so that no lock comes between. Returns whether each lock has the key of its name under `rules`.
    async fn may_raise(&mut self, rules: u8, permit: &mut OwnedSemaphorePermit) -> bool {
        permit.merge(self.acquire(Arc::clone(&self.permits), MAX_IN_FLIGHT as u32 - 1).await);
        check_names(&self.applied, rules).await.is_ok()
    }

    /// Takes out of the requests of `callers` what `rules` do not have. Whether anything is left to propose.
    fn withhold(&self, requests: &mut Vec<Request>, callers: &mut Vec<Caller>, rules: u8) -> bool {
        reject_older(requests, callers, rules);
        for (request, caller) in requests.iter_mut().zip(callers.iter_mut()) {
            caller.withheld = Withheld::take(request, rules, rules, self.since);
            caller.count = request.commands.len();
        }
        !callers.iter().all(|caller| caller.count == 0 && !caller.withheld.is_empty())
    }

    /// Takes as many queued requests as fit into one entry that costs `most`, but at least one if any is left. A request that raises the
    /// rules gets an entry of its own.
    fn pack(&mut self, most: usize) -> Packed {
        let state = self.applied.lock();
        let (mut raise, mut cost) = (None, 0);
        let (mut requests, mut callers) = (Vec::new(), Vec::<Caller>::new());
        let most = most.min(MAX_COST);
        let cost_of = |proposal: &Proposal| {
            let Request { by, commands } = &proposal.request;
            let by = by.as_ref().map(|owner| &owner.name);
            let keys = commands.iter().map(|command| state.table.key_count(by, command)).sum::<usize>();
            proposal.bytes() + PER_KEY * keys + PER_COMMAND * commands.len()
        };
        while raise.is_none()
            && let Some(proposal) = self.queue.next_if(cost_of, |next, more| {
                let may_join = callers.is_empty() || cost + more <= most && next.raise.is_none();
                if may_join {
                    cost += more;
                }
                may_join
            })
        {
            let Proposal { supports, request, reply, raise: asked, .. } = proposal;
            raise = asked;
            callers.push(Caller {
                supports,
                by: request.by.clone(),
                count: request.commands.len(),
                withheld: Withheld::default(),
                reply,
            });
            requests.push(request);
        }
        Packed { raise, requests, callers, cost }
    }
}

/// The requests of one entry.
struct Packed {
    raise: Option<Raise>,
    requests: Vec<Request>,
    callers: Vec<Caller>,
    /// In bytes.
    cost: usize,
}

/// Who waits for a request of an entry.
struct Caller {
    /// The newest rules that the program which sent it supports.
    supports: u8,
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

/// Rejects the requests from programs that do not support `rules`: those programs are about to stop.
fn reject_older(requests: &mut Vec<Request>, callers: &mut Vec<Caller>, rules: u8) {
    if callers.iter().all(|caller| caller.supports >= rules) {
        return;
    }
    let all = mem::take(requests).into_iter().zip(mem::take(callers));
    let (older, rest): (Vec<_>, Vec<_>) = all.partition(|(_, caller)| caller.supports < rules);
    (*requests, *callers) = rest.into_iter().unzip();
    let (older, waiting) = older.into_iter().unzip();
    reject(older, waiting);
}

/// `requests` have the commands that were not withheld.
fn reject(requests: Vec<Request>, callers: Vec<Caller>) {
    let mut commands = requests.into_iter().flat_map(|request| request.commands);
    for Caller { by, count, withheld, reply, .. } in callers {
        let commands = withheld.put_back(commands.by_ref().take(count));
        reply.send(Err(Failure::Rejected(Request { by, commands })));
    }
}
