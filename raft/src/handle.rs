//! The replicated table, as the rest of the program uses it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_lease::{Attachment, Command, LeaseTable, Outcome, Owner, Request};
use ringfence_wire::{ClusterStatus, Key, LeaseId, PrincipalName, Revision};
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use uuid::Uuid;

use crate::applied::changes::Changes;
use crate::applied::history::History;
use crate::applied::lease_wait::LeaseWait;
use crate::applied::table::Progress;
use crate::batching::Batching;
use crate::consensus::NodeId;
use crate::peer::passed;
use crate::propose::asker::Asker;
use crate::propose::proposal::{Failure, Origin};
use crate::reads::leader_is;
use crate::replica::{MirrorView, Replica};
use crate::status::{Sums, status};
use crate::storage::log_store::HANGS;
use crate::unanswered::{RETRY, Stuck, TIMEOUT, Unanswered, insist};

/// How long after its connection closed an acquire is taken back.
const DETACH_AFTER: Duration = Duration::from_secs(2);
/// How long a node may take to prove that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(1);
/// A leader with an entry that waits for longer is not ready.
const READY_COMMITS_WITHIN: Duration = Duration::from_secs(2);
/// How long answers are awaited from a node that was the leader when it was asked.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// The replicated lease table, as every node offers it: a follower passes on to the leader. Clones share it.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Replica>,
    batching: Batching,
}

/// The age of this node's unfinished work in seconds; 0 if there is none. Measurements of finished work do not show what
/// hangs.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished {
    /// The oldest entry that it proposed as the leader and has not applied yet.
    pub proposal: f64,
    /// The flush of its log.
    pub flush: f64,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Replica>) -> Self {
        let batching = Batching::start(&[], shared.proposer.clone(), shared.reads.clone());
        Self { shared, batching }
    }

    /// For use on these `runtimes`, each of one thread: what one of them asks in one turn is batched.
    #[must_use]
    pub fn on(self, runtimes: &[runtime::Handle]) -> Self {
        let batching = Batching::start(runtimes, self.shared.proposer.clone(), self.shared.reads.clone());
        Self { batching, ..self }
    }

    /// The rules that this node's table uses.
    pub fn rules(&self) -> u8 {
        self.shared.applied.rules()
    }

    /// The outcomes of a request's commands, in their order, once they are committed and applied on the leader. They stand in
    /// one log entry, each on its own.
    pub async fn propose(&self, request: impl Into<Request>) -> Result<Vec<Outcome>, Unanswered> {
        self.propose_of(Asker::UNNAMED, request.into()).await
    }

    /// As [`Handle::propose`], in the turns of `asker`.
    pub async fn propose_of(&self, asker: Asker, mut request: Request) -> Result<Vec<Outcome>, Unanswered> {
        let shared = &self.shared;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match shared.leader() {
                Some(leader) if leader == shared.id => {
                    match self.propose_here(asker.into(), request, deadline).await {
                        Ok(outcomes) => return Ok(outcomes),
                        Err(Failure::Unknown) => return Err(Unanswered::Indeterminate),
                        Err(Failure::Full) => return Err(Unanswered::Full),
                        Err(Failure::Rejected(back)) => request = back,
                    }
                }
                Some(leader) => match shared.pass_on(leader, asker, &request, deadline).await {
                    Err(Unanswered::Unavailable) => {}
                    answered => return answered,
                },
                None => {}
            }
            shared.wait_for_another_try(deadline).await?;
        }
    }

    /// As [`Handle::propose_of`], for requests that end leases of a client that is gone: tries again while the asker's share is full.
    pub async fn insist(&self, asker: Asker, request: Request) -> Result<Vec<Outcome>, Unanswered> {
        insist(|| self.propose_of(asker, request.clone())).await
    }

    /// Proposes on this node, which must lead, or be about to.
    pub(crate) async fn propose_here(
        &self,
        origin: Origin,
        request: Request,
        deadline: Instant,
    ) -> Result<Vec<Outcome>, Failure> {
        if !self.shared.is_leading(deadline).await {
            return Err(Failure::Rejected(request));
        }
        let outcomes = self.batching.propose(origin, request);
        timeout_at(deadline, outcomes).await.unwrap_or(Err(Failure::Unknown))
    }

    /// Resolves when the lease that `by` calls `lease_id`, whose acquire waits, is granted or ends.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn wait_for(&self, by: Option<PrincipalName>, lease_id: LeaseId) -> Result<LeaseWait, Stuck> {
        LeaseWait::start(&self.shared.applied, (lease_id, by), self.batching.reply())
    }

    /// Ends leases in 2 s, granted or not, except those of which a renewal or an acquire with another attachment arrives before. They are
    /// of one request, in parts that stay as they are.
    pub fn detach_later(&self, asker: Asker, by: Option<Owner>, parts: Vec<Vec<(LeaseId, Attachment)>>) {
        let detach = |(lease_id, attachment)| Command::Detach { lease_id, attachment };
        let (handle, at) = (self.clone(), Instant::now() + DETACH_AFTER);
        tokio::spawn(async move {
            sleep_until(at).await;
            let detached = parts.into_iter().map(|leases| {
                let commands = leases.into_iter().map(detach).collect();
                handle.insist(asker, Request { by: by.clone(), commands })
            });
            // The wait deadline or the time-to-live ends it where this does not arrive.
            for error in join_all(detached).await.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "could not cancel abandoned acquires");
            }
        });
    }

    /// The cluster's id, made when it was.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.peers.directory.cluster_id()
    }

    /// Waits until this node's state is as new as the cluster's was at some instant of the call. Gives the leader's
    /// clock in milliseconds, to count what is left of leases.
    pub async fn linearize(&self) -> Result<u64, Unanswered> {
        self.batching.linearize().await
    }

    /// Looks at this node's applied table. Waits for it, however long another thread has it: not on a thread that serves clients.
    pub fn view<R>(&self, look: impl FnOnce(&LeaseTable) -> R) -> R {
        self.shared.applied.read(|state| look(&state.table))
    }

    /// As [`view`](Self::view), on a thread that serves clients.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn try_view<R>(&self, look: impl FnOnce(&LeaseTable) -> R) -> Result<R, Stuck> {
        self.shared.applied.try_read(|state| look(&state.table))
    }

    /// Looks at the recent changes of this node's table. As [`view`](Self::view), not on a thread that serves clients.
    pub fn history<R>(&self, look: impl FnOnce(&History) -> R) -> R {
        self.shared.applied.read(|state| look(&state.history))
    }

    /// As [`history`](Self::history), on a thread that serves clients.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn try_history<R>(&self, look: impl FnOnce(&History) -> R) -> Result<R, Stuck> {
        self.shared.applied.try_read(|state| look(&state.history))
    }

    /// Resolves when there may be new ones.
    pub fn progress(&self) -> Progress {
        Progress(self.shared.applied.progress())
    }

    /// The term in which this node leads and takes commands, `None` while it does not, and every change of that.
    pub fn leads(&self) -> watch::Receiver<Option<u64>> {
        self.shared.leading.term()
    }

    /// The keys that change from now on, for a mirror. There is one receiver: a new one replaces it.
    pub fn changes(&self) -> Changes {
        Changes::start(&mut self.shared.applied.lock().marker)
    }

    /// Names the mirror that this node keeps while it leads. To be called once.
    pub fn set_mirror(&self, mirror: Box<dyn MirrorView>) {
        let _ = self.shared.mirror.set(mirror);
    }

    /// Whether the mirror shows what `revision` changed on `keys`, or a newer state. Waits for it up to `within`. A follower
    /// asks the leader. `false` also if that cannot be known.
    pub async fn mirror_has(&self, keys: Vec<Key>, revision: Revision, within: Duration) -> bool {
        let shared = &self.shared;
        let asked = async {
            match shared.leader() {
                Some(leader) if leader == shared.id => self.mirror_has_here(&keys, revision).await,
                Some(leader) => shared.peers.mirror_has(leader, keys, revision).await,
                None => false,
            }
        };
        timeout(within, asked).await.unwrap_or(false)
    }

    /// As [`Handle::mirror_has`], if this node keeps the mirror. The mirror bounds the time.
    pub(crate) async fn mirror_has_here(&self, keys: &[Key], revision: Revision) -> bool {
        match self.shared.mirror.get() {
            Some(mirror) => mirror.has(keys, revision).await,
            None => false,
        }
    }

    /// Whether this node is cut off, and may learn late of grants: for 3 s it has heard no leader, or has not applied what it knows
    /// to be committed, or a flush of its disk has taken more than 2 s. Another node may know more.
    pub fn is_cut_off(&self) -> bool {
        *self.shared.cut_off.borrow()
    }

    /// Whether a flush of the log takes so long that the disk must hang.
    pub fn disk_hangs(&self) -> bool {
        self.shared.log.flushing() > HANGS
    }

    /// Completes once this node is cut off.
    pub async fn until_cut_off(&self) {
        let mut cut_off = self.shared.cut_off.subscribe();
        if cut_off.wait_for(|cut_off| *cut_off).await.is_err() {
            std::future::pending().await
        }
    }

    /// The URL of the leader's HTTP listener, if both are known, as of at most 50 ms ago while the Raft thread runs; `None` soon after it
    /// hangs. Takes no lock.
    pub fn leader_url(&self) -> Option<Arc<String>> {
        self.shared.leader_url.get()
    }

    /// Whether this node can serve: it hears a leader, who is confirmed by a quorum and answers it, it has applied what was committed,
    /// and the cluster has its first revision. A leader also needs to get its entries applied, each within 2 s, and is not ready if
    /// no majority can call it, and the others can do without it. A follower does not know of that: it is not ready once the leader has
    /// given up, until another leads.
    pub async fn is_ready(&self) -> bool {
        matches!(timeout(READY_WITHIN, self.linearize()).await, Ok(Ok(_)))
            && self.try_view(LeaseTable::started) == Ok(true)
            && self.shared.leading.oldest() < READY_COMMITS_WITHIN
            && self.shared.leader().is_some()
            && !self.shared.is_uncallable()
    }

    /// The age of this node's unfinished work.
    pub fn unfinished(&self) -> Unfinished {
        Unfinished {
            proposal: self.shared.leading.oldest().as_secs_f64(),
            flush: self.shared.log.flushing().as_secs_f64(),
        }
    }

    /// How much memory the entries of this node's log take, in bytes.
    pub fn log_bytes_in_memory(&self) -> u64 {
        self.shared.log.bytes_in_memory()
    }

    /// The sets of voters that decide by this node's log, each by a majority: two while a change of members is under way.
    pub fn voters(&self) -> Vec<BTreeSet<NodeId>> {
        self.shared.metrics(|metrics| metrics.membership_config.membership().get_joint_config().clone())
    }

    /// How this node sees itself and the cluster, without its mirror.
    ///
    /// # Errors
    /// The thread that has the table hangs.
    pub fn try_status(&self) -> Result<ClusterStatus, Stuck> {
        self.shared.applied.try_read(Sums::of).map(|sums| status(&self.shared, sums))
    }

    /// As [`try_status`](Self::try_status). Waits for the table: not on a thread that serves clients.
    pub fn status(&self) -> ClusterStatus {
        status(&self.shared, self.shared.applied.read(Sums::of))
    }
}

impl Replica {
    /// The outcomes of `commands` from `leader`, unless another leads: an answer may never come then, from a node that
    /// was stopped or cut off, and the next leader can tell what became of them when it is asked again.
    async fn pass_on(
        &self,
        leader: NodeId,
        asker: Asker,
        request: &Request,
        deadline: Instant,
    ) -> Result<Vec<Outcome>, Unanswered> {
        let is_other = |now: NodeId| now != leader && !(now == self.id && self.handed_to().is_some());
        let replaced = async {
            leader_is(&self.raft, |now| now.is_some_and(is_other)).await;
            sleep(LAST_ANSWERS).await;
            io::Error::other("another node leads")
        };
        let end = async {
            tokio::select! {
                biased;
                error = passed(deadline) => error,
                error = replaced => error,
            }
        };
        self.peers.propose(leader, asker, request, || self.applied.rules(), end).await
    }

    /// Whether this node leads, once an election that it has just won is settled.
    async fn is_leading(&self, deadline: Instant) -> bool {
        if self.leading.is_open() {
            return true;
        }
        let mut term = self.leading.term();
        loop {
            if term.borrow_and_update().is_some() {
                return true;
            }
            if !self.raft.is_leader() || self.handed_to().is_some() || Instant::now() >= deadline {
                return false;
            }
            // An election that is lost again before it is settled changes nothing here: look again.
            let _ = timeout(RETRY, term.changed()).await;
        }
    }

    /// A moment, or until `deadline`, when it is an error.
    pub(crate) async fn wait_for_another_try(&self, deadline: Instant) -> Result<(), Unanswered> {
        let next = Instant::now() + RETRY;
        // What the deadline interrupts may have been done: a try that begins right before it could end in nothing better.
        if next + RETRY > deadline {
            return Err(Unanswered::Unavailable);
        }
        sleep_until(next).await;
        Ok(())
    }
}
