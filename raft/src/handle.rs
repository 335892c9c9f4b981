//! What the rest of the program may do with the replicated table.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, ServerState};
use ringfence_lease::{Attachment, Command, LeaseTable, Outcome};
use ringfence_mutant::{Mutant, is};
use ringfence_wire::{ClusterStatus, Key, LeaseId, Revision};
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use uuid::Uuid;

use crate::applied::changes::Changes;
use crate::applied::history::History;
use crate::applied::state_machine::Raft;
use crate::applied::table::{Applied, Progress};
use crate::applied::waits::LeaseWait;
use crate::consensus::NodeId;
use crate::hung_disk::GivenUp;
use crate::lanes::Lanes;
use crate::peer::{ForwardError, Peers};
use crate::propose::proposer::{Failure, Proposer};
use crate::reads::{Reads, leader_is};
use crate::status::status;
use crate::storage::log_store::LogStore;
use crate::time::leading::Leading;

/// How long a proposal or a read may take, the search for a leader included.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its connection closed a request is taken back.
const DETACH_AFTER: Duration = Duration::from_secs(2);
/// A leader that no quorum has acknowledged for so long is not called one any more, by itself or by a follower that has heard
/// nothing of it: another may have been elected.
const LEADER_LOST: Duration = Duration::from_secs(1);
/// How long a node may take to show that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(1);
/// How long answers are awaited from a node that was the leader when it was asked.
const LAST_ANSWERS: Duration = Duration::from_millis(250);
/// How long to wait before the leader is looked for again, where no change of it is noticed.
pub(crate) const RETRY: Duration = Duration::from_millis(20);

/// The replicated lease table, as every node offers it: a follower passes on to the leader. Clones share it.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
    lanes: Lanes,
}

pub(crate) struct Shared {
    pub(crate) id: NodeId,
    pub(crate) raft: Raft,
    pub(crate) applied: Applied,
    pub(crate) leading: Arc<Leading>,
    pub(crate) proposer: Proposer,
    pub(crate) log: LogStore,
    pub(crate) reads: Reads,
    pub(crate) peers: Arc<Peers>,
    pub(crate) mirror: OnceLock<Box<dyn Mirrored>>,
    /// When a leader was last followed here: its entries, or a heartbeat.
    pub(crate) followed_at: Mutex<Option<Instant>>,
    /// Held while this node changes the members.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// The term that this node led, and gave up for its disk.
    pub(crate) given_up: GivenUp,
}

/// What publishes this node's fences while it leads, as far as the nodes need to know it.
pub trait Mirrored: Send + Sync {
    /// Whether what `revision` changed on `keys` stands in the mirror, or in a newer state: waits a bounded time for it.
    fn stands<'a>(
        &'a self,
        keys: &'a [Key],
        revision: Revision,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// How long this node has been at what it has not finished, in seconds; 0 where there is nothing. What hangs is in no
/// measurement of what has ended.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished {
    /// The oldest entry that it has proposed, leading, and that is not applied yet.
    pub proposal: f64,
    /// The flush of its log.
    pub flush: f64,
}

/// Why there is no answer. The difference is kept apart on the whole way from the log to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Certainly not done: no leader took it.
    #[error("no leader took the request in time; it was certainly not done")]
    Unavailable,
    /// It may or may not have been done, or be done later.
    #[error("the request was passed on, but its outcome did not come back; it may or may not have been done")]
    Indeterminate,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let lanes = Lanes::start(&[], shared.proposer.clone(), shared.reads.clone());
        Self { shared, lanes }
    }

    /// For use on these `runtimes`, each of one thread: what one of them asks in one turn is batched.
    #[must_use]
    pub fn on(self, runtimes: &[runtime::Handle]) -> Self {
        let lanes = Lanes::start(runtimes, self.shared.proposer.clone(), self.shared.reads.clone());
        Self { lanes, ..self }
    }

    /// The outcomes of `commands`, in their order, once they are committed and applied on the leader. Commands of one
    /// call stand in one log entry, each on its own.
    pub async fn propose(&self, mut commands: Vec<Command>) -> Result<Vec<Outcome>, Unanswered> {
        let shared = &self.shared;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match shared.leader() {
                Some(leader) if leader == shared.id => match self.propose_here(commands, deadline).await {
                    Ok(outcomes) => return Ok(outcomes),
                    Err(Failure::Unknown) => return Err(Unanswered::Indeterminate),
                    Err(Failure::Rejected(back)) => commands = back,
                },
                Some(leader) => match shared.pass_on(leader, &commands, deadline).await {
                    Ok(outcomes) => return Ok(outcomes),
                    Err(ForwardError::Unknown) => return Err(Unanswered::Indeterminate),
                    Err(ForwardError::NotDone) => {}
                },
                None => {}
            }
            shared.wait_for_another_try(deadline).await?;
        }
    }

    /// Proposes on this node, which must lead, or be about to.
    pub(crate) async fn propose_here(
        &self,
        commands: Vec<Command>,
        deadline: Instant,
    ) -> Result<Vec<Outcome>, Failure> {
        if !self.shared.is_leading(deadline).await {
            return Err(Failure::Rejected(commands));
        }
        let outcomes = self.lanes.propose(commands);
        timeout_at(deadline, outcomes).await.unwrap_or(Err(Failure::Unknown))
    }

    /// To be told when `lease_id`, whose acquire waits, is granted or ends.
    pub fn wait_for(&self, lease_id: LeaseId) -> LeaseWait {
        LeaseWait::start(&self.shared.applied, lease_id, self.lanes.reply())
    }

    /// Takes back the acquire with this attachment in 2 s, granted or not, unless another acquire stands for the lease or a renewal comes.
    pub fn detach_later(&self, lease_id: LeaseId, attachment: Attachment) {
        let handle = self.clone();
        let at = Instant::now() + DETACH_AFTER;
        tokio::spawn(async move {
            sleep_until(at).await;
            // The wait deadline or the time-to-live ends it where this does not arrive.
            if let Err(error) = handle.propose(vec![Command::Detach { lease_id, attachment }]).await {
                tracing::debug!(%error, "an abandoned request could not be taken back");
            }
        });
    }

    /// The cluster's id, made when it was.
    pub fn cluster_id(&self) -> Uuid {
        self.shared.peers.cluster_id()
    }

    /// Waits until this node's state is as new as the cluster's was at some instant of the call. Gives the leader's
    /// clock in milliseconds, to count what is left of leases.
    pub async fn linearize(&self) -> Result<u64, Unanswered> {
        self.lanes.linearize().await
    }

    /// Looks at this node's applied table.
    pub fn view<R>(&self, look: impl FnOnce(&LeaseTable) -> R) -> R {
        let _turn = self.lanes.turn();
        look(&self.shared.applied.lock().table)
    }

    /// Looks at the latest changes of this node's table.
    pub fn history<R>(&self, look: impl FnOnce(&History) -> R) -> R {
        let _turn = self.lanes.turn();
        look(&self.shared.applied.lock().history)
    }

    /// To be told when there may be new ones.
    pub fn progress(&self) -> Progress {
        Progress(self.shared.applied.progress())
    }

    /// The term in which this node leads and takes commands, `None` while it does not, and every change of that.
    pub fn leads(&self) -> watch::Receiver<Option<u64>> {
        self.shared.leading.term()
    }

    /// The keys that change from now on, for a mirror. There is one: an earlier one is told nothing any more.
    pub fn changes(&self) -> Changes {
        Changes::start(&mut self.shared.applied.lock().marker)
    }

    /// Names the mirror that this node keeps while it leads. To be called once.
    pub fn set_mirror(&self, mirror: Box<dyn Mirrored>) {
        let _ = self.shared.mirror.set(mirror);
    }

    /// Whether what `revision` changed on `keys` stands in the mirror, or in a newer state: waits for it up to `within`.
    /// A follower asks the leader. `false` also where nobody can tell.
    pub async fn stands(&self, keys: Vec<Key>, revision: Revision, within: Duration) -> bool {
        let shared = &self.shared;
        if is(Mutant::MirroredUnseen) {
            return true;
        }
        let stands = async {
            match shared.leader() {
                Some(leader) if leader == shared.id => self.stands_here(&keys, revision).await,
                Some(leader) => shared.peers.stands(leader, keys, revision).await,
                None => false,
            }
        };
        timeout(within, stands).await.unwrap_or(false)
    }

    /// As [`Handle::stands`], as far as this node keeps the mirror. It is for the mirror to bound the time.
    pub(crate) async fn stands_here(&self, keys: &[Key], revision: Revision) -> bool {
        match self.shared.mirror.get() {
            Some(mirror) => mirror.stands(keys, revision).await,
            None => false,
        }
    }

    /// The URL of the leader's HTTP listener, where both are known.
    pub fn leader_url(&self) -> Option<String> {
        self.shared.peers.url(self.shared.leader()?)
    }

    /// Whether this node can serve: a leader, confirmed by a quorum, answers it, it has applied what was committed, and the
    /// cluster has started to count.
    pub async fn is_ready(&self) -> bool {
        matches!(timeout(READY_WITHIN, self.linearize()).await, Ok(Ok(_))) && self.view(LeaseTable::started)
    }

    /// How long this node has been at what it has not finished.
    pub fn unfinished(&self) -> Unfinished {
        Unfinished {
            proposal: self.shared.leading.oldest().as_secs_f64(),
            flush: self.shared.log.flushing().as_secs_f64(),
        }
    }

    /// How this node sees itself and the cluster, but for its mirror.
    pub fn status(&self) -> ClusterStatus {
        status(&self.shared)
    }
}

impl Shared {
    /// Who leads, as far as this node knows: itself with a quorum behind it, or whom it has followed just now. Raft does not
    /// forget a leader before there is another.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        if let Some(to) = self.handed_to() {
            return Some(to);
        }
        // Nearly always this node leads where much is asked.
        if self.is_acknowledged(LEADER_LOST) {
            return Some(self.id);
        }
        let leader = self.raft.server_metrics().borrow_watched().current_leader?;
        let leads = match leader == self.id {
            true => self.has_quorum(LEADER_LOST),
            false => self.followed_at().is_some_and(|at| at.elapsed() < LEADER_LOST),
        };
        leads.then_some(leader)
    }

    /// Whether this node leads, and a quorum acknowledged it within the last while. A lone voter is its own quorum.
    pub(crate) fn has_quorum(&self, within: Duration) -> bool {
        let is_alone = || self.leads_in().is_some() && self.raft.voter_ids().all(|voter| voter == self.id);
        self.is_acknowledged(within) || is_alone()
    }

    /// As openraft counts acknowledgements: one may be credited to a message that was sent after what it answers. So this
    /// may be wrong by as long as an answer was on its way; nothing may rest on it but where to send what, and whether
    /// time is counted.
    fn is_acknowledged(&self, within: Duration) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let acknowledged = metrics.last_quorum_acked.filter(|_| metrics.state == ServerState::Leader);
        acknowledged.is_some_and(|at| at.elapsed() < within)
    }

    /// The term in which this node leads, as far as Raft has told. The vote alone does not say it: that of a leader that
    /// was started again is still its own.
    pub(crate) fn leads_in(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.state == ServerState::Leader).then_some(metrics.current_term)
    }

    pub(crate) fn followed_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.followed_at.lock().expect("nothing that panics is done while it is locked")
    }

    /// The outcomes of `commands` from `leader`, unless another leads: an answer may never come then, from a node that
    /// was stopped or cut off, and the next leader can tell what became of them when it is asked again.
    async fn pass_on(
        &self,
        leader: NodeId,
        commands: &[Command],
        deadline: Instant,
    ) -> Result<Vec<Outcome>, ForwardError> {
        let is_other = |now: NodeId| now != leader && !(now == self.id && self.handed_to().is_some());
        let replaced = async {
            leader_is(&self.raft, |now| now.is_some_and(is_other)).await;
            sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            outcomes = self.peers.propose(leader, commands, deadline) => outcomes,
            () = replaced => Err(ForwardError::Unknown),
        }
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
