//! Starting and stopping a node.

use std::collections::BTreeMap;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Config, SnapshotPolicy};
use ringfence_mutant::{Mutant, is};
use ringfence_wire::Revision;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::applied::state_machine::{Raft, StateMachine};
use crate::applied::table::Applied;
use crate::consensus::NodeId;
use crate::handle::{Handle, Shared};
use crate::hung_disk::{self, GivenUp};
use crate::members::founding::{Founding, JoinError};
use crate::peer::{Listener, Network, Peers, Served};
use crate::propose::proposer::Proposer;
use crate::reads::{ReadIndex, Reads};
use crate::storage::compaction::{Compaction, tail_bytes};
use crate::storage::identity::{DataDir, DirError};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::{Generations, LoadError};
use crate::time::clock::TICK;
use crate::time::leading::Leading;
use crate::time::start::{Elders, Start};

/// A leader counts time only if a quorum acknowledged it within this time: less than any follower waits before it may
/// elect another.
const QUORUM_FRESH: Duration = Duration::from_millis(400);
const HEARTBEAT_MS: u64 = 100;
pub(crate) const ELECTION_MS: std::ops::Range<u64> = 500..1_000;

/// What a node needs to start.
pub struct Settings {
    /// This node's id, from 1.
    pub id: NodeId,
    /// Its data directory; made if it is not there.
    pub data: PathBuf,
    /// Where peers connect, bound already.
    pub peer_listener: TcpListener,
    /// `host:port` of the peer listeners of all first members, this one included. Empty or this one alone: one node.
    pub peers: BTreeMap<NodeId, String>,
    /// Where it belongs to no cluster yet: wait to be [added](Handle::add_member) to one, and found none.
    pub join: bool,
    /// This node's HTTP URL, as the others and clients are to be told.
    pub url: String,
    /// What a new cluster counts its revisions from; `None`: unix milliseconds × 1,024.
    pub first_revision: Option<Revision>,
    /// Who may know of an earlier cluster that was ahead of that: asked before a new cluster takes its first command.
    pub elders: Option<Box<dyn Elders>>,
    /// After how many bytes of log a snapshot is taken: [`SNAPSHOT_AFTER_BYTES`] unless there is a reason.
    pub snapshot_after_bytes: u64,
}

/// 32 MiB: a few seconds of a busy cluster, and hours of a quiet one.
pub const SNAPSHOT_AFTER_BYTES: u64 = 32 << 20;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings contradict themselves.
    #[error("{0}")]
    Settings(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The log cannot be read.
    #[error("the log of this node cannot be used: {0}")]
    Log(String),
    /// A node of a cluster has a log, be it without entries.
    #[error(
        "{0} is gone or empty: without its log this node has forgotten what it voted and acknowledged. Give it back, or \
         remove the node from the cluster and add it under a new id"
    )]
    LogMissing(PathBuf),
    /// No snapshot can be read that the log goes on from.
    #[error("the snapshots of this node cannot be used: {0}")]
    Snapshots(String),
    /// The node cannot join its cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Raft does not start.
    #[error("raft does not start: {0}")]
    Raft(String),
}

/// A running node. Dropping it does not stop it in order: see [`Node::stop`].
pub struct Node {
    handle: Handle,
    tasks: Tasks,
    dir: Arc<DataDir>,
}

impl Node {
    /// Starts a node; returns once it belongs to a cluster, which for a new one takes all its members.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let Settings { id, data, peer_listener, peers: addresses, url, .. } = settings;
        let Settings { join, first_revision, elders, snapshot_after_bytes, .. } = settings;
        if id == 0 {
            return Err(StartError::Settings("a node's id is at least 1".to_owned()));
        }
        if !addresses.is_empty() && !addresses.contains_key(&id) {
            return Err(StartError::Settings(format!("the peers do not list this node, {id}")));
        }
        let members: Vec<NodeId> =
            if addresses.is_empty() { vec![id] } else { addresses.keys().copied().collect() };

        let (dir, identity) = DataDir::open(&data, id)?;
        let dir = Arc::new(dir);
        let log_dir = data.join("log");
        // The log was made before the node could be taken into a cluster.
        if identity.cluster.is_some() && !holds_files(&log_dir) {
            return Err(StartError::LogMissing(log_dir));
        }
        let log = LogStore::open(&log_dir, wal_options(snapshot_after_bytes))
            .map_err(|error| StartError::Log(error.to_string()))?;
        let applied = Applied::new();
        let generations = load(&dir, &log, &applied, tail_bytes(snapshot_after_bytes)).await?;
        let peers = Arc::new(Peers::new(identity.clone(), url, addresses));
        let served = Arc::new(Served {
            peers: Arc::clone(&peers),
            founding: Founding::new(Arc::clone(&dir), log.clone(), identity),
            generations: Arc::clone(&generations),
            handle: OnceLock::new(),
        });
        let listener = Listener { listener: peer_listener, served: Arc::clone(&served) };
        let mut tasks = Tasks::default();
        tasks.start("connections of peers", listener.run());

        let cluster = if join {
            served.founding.wait(&peers).await
        } else {
            served.founding.join(&peers, &members).await?
        };
        peers.join(cluster);

        let state_machine = StateMachine::new(applied.clone(), log.clone(), Arc::clone(&generations));
        let config = Arc::new(config(cluster).map_err(|error| StartError::Raft(error.to_string()))?);
        let network = Network(Arc::clone(&peers));
        let raft = Raft::new(id, config, network, log.clone(), state_machine).await;
        let raft = raft.map_err(|error| StartError::Raft(error.to_string()))?;
        peers.attach(&raft);

        let leading = Arc::new(Leading::new());
        let (proposer, packing) =
            Proposer::new(raft.clone(), Arc::clone(&leading), log.clone(), applied.clone());
        tasks.start("proposals", packing);
        let read_index = ReadIndex {
            id,
            raft: raft.clone(),
            applied: applied.clone(),
            leading: Arc::clone(&leading),
            peers: Arc::clone(&peers),
        };
        let (reads, confirming) = Reads::new(read_index);
        tasks.start("linearizable reads", confirming);
        let shared = Arc::new(Shared {
            id,
            raft: raft.clone(),
            applied,
            leading,
            proposer,
            log: log.clone(),
            reads,
            peers: Arc::clone(&peers),
            mirror: OnceLock::new(),
            followed_at: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            given_up: GivenUp::default(),
        });
        let handle = Handle::new(Arc::clone(&shared));
        let _ = served.handle.set(handle.clone());
        let start = Arc::new(Start { first_revision, elders });
        tasks.start("the leadership", lead(Arc::clone(&shared), start));
        let before = members.iter().filter(|member| **member < id).count() as u64;
        let compaction = Compaction {
            raft: raft.clone(),
            log,
            generations,
            after_bytes: snapshot_after_bytes,
            head_start_bytes: snapshot_after_bytes * before / members.len() as u64,
        };
        tasks.start("snapshots", compaction.run());
        tasks.start("a disk that hangs", hung_disk::watch(Arc::clone(&shared)));
        tasks.start("new members", Arc::clone(&shared).promote_learners());
        if served.founding.is_founder() && !matches!(raft.is_initialized().await, Ok(true)) {
            let served = Arc::clone(&served);
            let fault = tasks.fault.clone();
            tasks.running.push(tokio::spawn(async move {
                if let Err(error) = served.founding.finish(peers, raft, cluster, members).await {
                    fault.send_replace(Some(error.to_string()));
                }
            }));
        }
        Ok(Self { handle, tasks, dir })
    }

    /// The replicated table. Clones may outlive the node; they answer [`Unanswered`](crate::Unanswered) then.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns, with the reason, when the node can go on no longer: a disk that failed, a log that cannot be applied, a
    /// cluster that knows it as another, a task that ended.
    pub async fn failed(&self) -> String {
        let raft = &self.handle.shared.raft;
        // Who leads changes seldom, the other metrics with every entry; all channels close when raft ends.
        let mut server = raft.server_metrics();
        let raft_ends = async { while server.changed().await.is_ok() {} };
        let mut fault = self.tasks.fault.subscribe();
        let fault = tokio::select! {
            () = raft_ends => None,
            Ok(reason) = fault.wait_for(Option::is_some) => reason.clone(),
        };
        // Some tasks end because raft has: its reason is the reason then.
        match (&raft.metrics().borrow_watched().running_state, fault) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(fault)) => fault,
            (Ok(()), None) => "raft has stopped".to_owned(),
        }
    }

    /// Hands the leadership to another member, if this node leads and there is another; waits no longer than `within`.
    pub async fn hand_over(&self, within: Duration) {
        let shared = &self.handle.shared;
        if let Some(to) = shared.successor() {
            shared.hand_over(to, within).await;
        }
    }

    /// Stops: what is queued in the log is written, and the data directory is free again.
    pub async fn stop(mut self) {
        if let Err(error) = self.handle.shared.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop in order");
        }
        for task in std::mem::take(&mut self.tasks.running) {
            task.abort();
            // What it held, the directory too, is let go of.
            let _ = task.await;
        }
        drop(self.dir);
    }
}

/// Finds the newest snapshot that can be used, and starts log and state from there.
async fn load(
    dir: &Arc<DataDir>,
    log: &LogStore,
    applied: &Applied,
    tail_bytes: u64,
) -> Result<Arc<Generations>, StartError> {
    let failed = |error: LoadError| StartError::Snapshots(error.to_string());
    let generations = Generations::open(Arc::clone(dir)).map_err(|error| failed(error.into()))?;
    let generations = Arc::new(generations);
    if let Some((table, meta)) = generations.load(log.purged()).await.map_err(failed)? {
        if let Some(id) = meta.last_log_id {
            tracing::info!(index = id.index(), live_leases = table.live(), "snapshot read");
            log.start_from(id, tail_bytes);
        }
        applied.replace(table, &meta);
    }
    Ok(generations)
}

/// What cannot be read is not gone: opening it says what is wrong.
fn holds_files(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The tasks of a node. They end with it, or with the start that they belong to, should it fail.
#[derive(Default)]
struct Tasks {
    running: Vec<JoinHandle<()>>,
    /// Why the cluster could not be founded, or which task has ended.
    fault: watch::Sender<Option<String>>,
}

impl Tasks {
    /// Starts a task that is to run as long as the node does: without it, the node would look well and serve nobody.
    fn start(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let end = End { what, fault: self.fault.clone() };
        self.running.push(tokio::spawn(async move {
            let _end = end;
            task.await;
        }));
    }
}

/// Told when a task ends, in whichever way.
struct End {
    what: &'static str,
    fault: watch::Sender<Option<String>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "has panicked" } else { "has ended" };
        self.fault.send_if_modified(|fault| {
            let is_first = fault.is_none();
            fault.get_or_insert_with(|| format!("the task for {} {how}", self.what));
            is_first
        });
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.running {
            task.abort();
        }
    }
}

impl Shared {
    /// Hands the leadership to `to`; tells whether another node leads within that time.
    pub(crate) async fn hand_over(&self, to: NodeId, within: Duration) -> bool {
        tracing::info!(to, "handing over the leadership");
        let handed = async {
            if self.raft.trigger().transfer_leader(to).await.is_err() {
                return;
            }
            while self.leader().is_none_or(|leader| leader == self.id) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = timeout(within, handed).await.is_ok();
        if !in_time {
            tracing::warn!(to, "the leadership was not taken over in time");
        }
        in_time
    }

    /// The voter that lacks the least of the log, this node excepted; `None` if this node does not lead.
    pub(crate) fn successor(&self) -> Option<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let voters: Vec<NodeId> = metrics.membership_config.membership().voter_ids().collect();
        let replication = metrics.replication.as_ref()?;
        let others = replication.iter().filter(|(id, _)| **id != self.id && voters.contains(id));
        others.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
    }
}

/// A segment goes as a whole, so none is larger than what is to be let go of at a time.
fn wal_options(snapshot_after_bytes: u64) -> ringfence_wal::Options {
    let segment_bytes = snapshot_after_bytes.clamp(1 << 20, 64 << 20);
    let seconds = metrics::histogram!("ringfence_raft_log_flush_seconds");
    let written = metrics::counter!("ringfence_raft_log_written_bytes_total");
    ringfence_wal::Options {
        on_flush: Some(Arc::new(move |took, bytes| {
            seconds.record(took.as_secs_f64());
            written.increment(bytes as u64);
        })),
        segment_bytes,
        // Of whole blocks, so that the log is written past the page cache.
        step_bytes: (segment_bytes / 8) as u32 & !4_095,
        ..ringfence_wal::Options::default()
    }
}

fn config(cluster: uuid::Uuid) -> Result<Config, openraft::ConfigError> {
    let config = Config {
        cluster_name: cluster.to_string(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.start,
        election_timeout_max: ELECTION_MS.end,
        enable_pre_vote: Some(true),
        // A restarted leader must win an election before it leads again.
        enable_leader_restore: Some(false),
        // By turns: a leader that has lost its quorum sends no heartbeats for so long, and then does. A node that hears
        // it does not vote for others, who may have a quorum with this node only.
        quorum_loss_probe_interval: Some(2 * ELECTION_MS.end),
        allow_log_reversion: Some(is(Mutant::LetsWipedNodeIn)),
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    };
    config.validate()
}

/// Keeps [`Leading`] true, lets its clock tick, and proposes what only time demands: the first entry of a new cluster,
/// and an entry that tells the time when something is due.
async fn lead(shared: Arc<Shared>, start: Arc<Start>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut raft_metrics = shared.raft.server_metrics();
    let mut progress = shared.applied.progress();
    let term_opened = shared.leading.term();
    let leader_changes = metrics::counter!("ringfence_raft_leader_changes_total");
    let (mut leads, mut leader): (Option<u64>, Option<NodeId>) = (None, None);
    let mut telling: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = raft_metrics.changed() => if changed.is_err() { return },
            // While this node waits to have applied the first entry of its own term, and of a new cluster.
            _ = progress.changed(), if term_opened.borrow().is_none() && shared.raft.is_leader() => {}
        }
        let known = raft_metrics.borrow_watched().current_leader;
        if known != leader {
            leader_changes.increment(known.is_some().into());
            leader = known;
        }
        let term = shared.leads_in().filter(|term| !shared.given_up.is(*term));
        if leads != term {
            shared.leading.end();
            leads = None;
            let state = shared.applied.lock();
            let applied_term = state.last_applied.map(|id| id.committed_leader_id().term);
            if let Some(term) = term.filter(|term| applied_term == Some(*term)) {
                tracing::info!(term, "this node leads");
                shared.leading.begin(term, state.table.at_ms());
                leads = Some(term);
                if is(Mutant::TokensStartAnew) {
                    let (proposer, start) = (shared.proposer.clone(), Arc::clone(&start));
                    tokio::spawn(async move {
                        let commands = start.command().await.into_iter().collect();
                        drop(proposer.propose(commands).await);
                    });
                }
            }
        }
        let Some(now_ms) = shared.leading.tick(shared.has_quorum(QUORUM_FRESH)) else { continue };
        let (started, due) = {
            let state = shared.applied.lock();
            (state.table.started(), state.table.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms))
        };
        if started {
            shared.leading.open();
        }
        let is_telling = telling.as_ref().is_some_and(|task| !task.is_finished());
        if (due || !started) && !is_telling {
            let (shared, start) = (Arc::clone(&shared), Arc::clone(&start));
            // Its fate shows in the table; if it was lost, a later tick tells again.
            telling = Some(tokio::spawn(async move {
                let mut commands = match started {
                    true => Vec::new(),
                    false => match start.command().await {
                        Some(command) => vec![command],
                        None => return,
                    },
                };
                let is_left_over = || {
                    let table = &shared.applied.lock().table;
                    table.next_due_ms().is_some_and(|due_ms| due_ms <= table.at_ms())
                };
                // What an entry leaves over, because it has enough to do, does not wait for the next tick.
                while shared.proposer.propose(mem::take(&mut commands)).await.is_ok() && is_left_over() {}
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than anything here takes that goes well.
    const SOON: Duration = Duration::from_secs(10);

    /// A node once went on without its task for proposals, and answered nobody.
    #[tokio::test]
    async fn a_node_fails_when_any_of_its_tasks_ends() {
        let mut told = Vec::new();
        loop {
            let dir = tempfile::tempdir().unwrap();
            let peer_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let settings = Settings {
                id: 1,
                data: dir.path().to_owned(),
                peer_listener,
                peers: BTreeMap::new(),
                join: false,
                url: "http://node-1".to_owned(),
                first_revision: None,
                elders: None,
                snapshot_after_bytes: SNAPSHOT_AFTER_BYTES,
            };
            let node = Node::start(settings).await.unwrap();
            node.handle().linearize().await.unwrap();
            // The task that founds the cluster has ended by then, or ends for good.
            let lasting = node.tasks.running.iter().filter(|task| !task.is_finished());
            let Some(task) = lasting.take(7).nth(told.len()) else { break };
            task.abort();
            told.push(timeout(SOON, node.failed()).await.unwrap());
            node.stop().await;
        }
        assert_eq!(told.len(), 7);
        for task in ["connections of peers", "proposals", "linearizable reads", "the leadership", "snapshots"]
        {
            assert!(told.contains(&format!("the task for {task} has ended")), "{task}: {told:?}");
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_is_a_fault_and_the_first_is_told() {
        let mut tasks = Tasks::default();
        let mut fault = tasks.fault.subscribe();
        tasks.start("this", async { panic!("of some kind") });
        let told = timeout(SOON, fault.wait_for(Option::is_some)).await.unwrap().unwrap().clone().unwrap();
        assert_eq!(told, "the task for this has panicked");
        tasks.start("that", async {});
        assert!(tasks.running.pop().unwrap().await.is_ok());
        assert_eq!(*fault.borrow(), Some(told));
    }
}
