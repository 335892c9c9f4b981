//! Starting and stopping a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use ringfence_lease::UnsupportedRules;
use ringfence_wire::{Revision, RulesRange};

use crate::applied::state_machine::{Raft, StateMachine};
use crate::applied::table::Applied;
use crate::condemned;
use crate::consensus::{self, NodeId};
use crate::divergence;
use crate::fitness;
use crate::gate::Since;
use crate::handle::Handle;
use crate::lead::lead;
use crate::lines::Lines;
use crate::measure;
use crate::members::founding::{Founding, JoinError};
use crate::peer::{Directory, Network, Peers, Program, Server, Transport};
use crate::propose::proposer::Proposer;
use crate::random::Random;
use crate::reads::{ReadIndex, Reads};
use crate::replica::{GivenUp, Replica};
use crate::service::NodeService;
use crate::storage::compaction::{Compaction, tail_bytes};
use crate::storage::identity::{DataDir, DirError};
use crate::storage::log_store::LogStore;
use crate::storage::snapshots::store::Storage;
use crate::storage::snapshots::{Generations, LoadError};
use crate::tasks::Tasks;
use crate::time::elapsed::Quartz;
use crate::time::leading::Leading;
use crate::time::start::{Elders, NewCluster};
use crate::time::wall::WallClock;

/// What a node needs to start.
pub struct Settings {
    /// This node's id, from 1.
    pub id: NodeId,
    /// Its data directory; made if it is missing.
    pub data: PathBuf,
    /// What that is on: [`System`](crate::System), except in a simulation.
    pub storage: Arc<dyn Storage>,
    /// How the node connects to its peers, and they to it: [`Tcp`](crate::Tcp), except in a simulation.
    pub transport: Arc<dyn Transport>,
    /// The peer addresses (`host:port`) of all first members, this one included. Empty or this one alone: a cluster of one.
    pub peers: BTreeMap<NodeId, String>,
    /// If the node belongs to no cluster yet: wait to be [added](Handle::add_member) to one, and found none.
    pub join: bool,
    /// This node's HTTP URL, as clients and the other nodes reach it.
    pub url: String,
    /// Where the revisions of a new cluster start; `None`: at unix milliseconds × 1,024.
    pub first_revision: Option<Revision>,
    /// What revisions are raised to: [`WallClock::system`], except in a simulation.
    pub wall_clock: WallClock,
    /// Asked before a new cluster takes its first command: whether an earlier cluster came further than that.
    pub elders: Option<Box<dyn Elders>>,
    /// How many bytes of log make a snapshot due: [`SNAPSHOT_AFTER_BYTES`] unless there is a reason.
    pub snapshot_after_bytes: u64,
    /// About how many bytes all leases of the cluster may take together while this node leads.
    pub max_lease_bytes: u64,
    /// The rules that the program supports: [`ringfence_lease::SUPPORTED`], except in a test of several programs.
    pub rules: RulesRange,
    /// The first rules that have a command: [`Command::since`](ringfence_lease::Command::since), except in a test of several
    /// programs.
    pub since: Since,
    /// Where all its random numbers come from: [`Random::system`], except in a simulation.
    pub random: Random,
    /// What it counts the time by while it leads: [`Quartz::system`], except in a simulation, which has [none](Quartz::none).
    pub quartz: Quartz,
}

/// 32 MiB: a few seconds of a busy cluster, and hours of a quiet one.
pub const SNAPSHOT_AFTER_BYTES: u64 = 32 << 20;

/// 1 GiB: about three million leases with a short key each.
pub const MAX_LEASE_BYTES: u64 = 1 << 30;

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
    /// The log is damaged, or another version wrote it.
    #[error("the log of this node cannot be used: {0}")]
    LogDamaged(String),
    /// A node that belongs to a cluster has no log.
    #[error(
        "{0} is gone or empty: without its log this node has forgotten what it voted and acknowledged. Remove \
         the node from the cluster, empty its data directory, and add it again"
    )]
    LogMissing(PathBuf),
    /// The snapshots cannot be read.
    #[error("the snapshots of this node cannot be used: {0}")]
    Snapshots(String),
    /// No undamaged snapshot is left that the log continues.
    #[error("the snapshots of this node cannot be used: {0}")]
    SnapshotsDamaged(String),
    /// The cluster uses rules that the program does not support.
    #[error(transparent)]
    Rules(#[from] UnsupportedRules),
    /// The node cannot join its cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Raft does not start.
    #[error("raft does not start: {0}")]
    Raft(String),
}

impl StartError {
    /// Whether the node would not start at another attempt either, unless an operator changes something.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Settings(_)
            | Self::LogDamaged(_)
            | Self::LogMissing(_)
            | Self::SnapshotsDamaged(_)
            | Self::Rules(_) => true,
            Self::Dir(error) => !matches!(error, DirError::InUse(_) | DirError::Io { .. }),
            Self::Join(error) => matches!(error, JoinError::Wiped { .. }),
            Self::Log(_) | Self::Snapshots(_) | Self::Raft(_) => false,
        }
    }
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
        let Settings { id, data, storage, transport, peers: addresses, join, url, .. } = settings;
        let Settings { first_revision, wall_clock, elders, snapshot_after_bytes, .. } = settings;
        let Settings { max_lease_bytes, rules, since, random, quartz, .. } = settings;
        if id == 0 {
            return Err(StartError::Settings("a node's id is at least 1".to_owned()));
        }
        if !join && !addresses.is_empty() && !addresses.contains_key(&id) {
            return Err(StartError::Settings(format!("the peers do not list this node, {id}")));
        }
        let members: Vec<NodeId> =
            if addresses.is_empty() { vec![id] } else { addresses.keys().copied().collect() };

        let (dir, mut identity) = DataDir::open_on(storage, &data, id, &random)?;
        dir.check_condemned()?;
        let dir = Arc::new(dir);
        // The log was made before the node could be taken into a cluster.
        if identity.cluster.is_some() && !dir.has_log() {
            return Err(StartError::LogMissing(dir.log()));
        }
        let log =
            LogStore::open(&dir, wal_options(snapshot_after_bytes)).map_err(|error| match error.is_io() {
                true => StartError::Log(error.to_string()),
                false => StartError::LogDamaged(error.to_string()),
            })?;
        let applied = Applied::new();
        let generations = load(&dir, &log, &applied, tail_bytes(snapshot_after_bytes), rules).await?;
        log.check_rules(rules)?;
        dir.start(&mut identity, &random)?;

        let directory =
            Arc::new(Directory::new(identity.clone(), url, addresses, &transport, Program::of_this(rules)));
        let peers = Arc::new(Peers::new(Arc::clone(&directory), since));
        let founding = Founding::new(Arc::clone(&dir), log.clone(), identity, random.clone());
        let service = NodeService { directory: Arc::clone(&directory), founding, handle: OnceLock::new() };
        let mut tasks = Tasks::default();
        let server = Arc::new(Server {
            directory: Arc::clone(&directory),
            log: log.clone(),
            generations: Arc::clone(&generations),
            raft: OnceLock::new(),
            service,
            named: Mutex::default(),
            lines: Lines::default(),
            turn: Default::default(),
            fault: tasks.fault.clone(),
        });
        tasks.start("connections of peers", Arc::clone(&server).run(transport));
        let founding = &server.service.founding;
        let cluster = match join {
            true => founding.wait(&peers).await,
            false => founding.join(&peers, &members).await?,
        };
        directory.join(cluster);

        let raft_error = |error: &dyn ToString| StartError::Raft(error.to_string());
        let config = Arc::new(consensus::config(cluster).map_err(|error| raft_error(&error))?);
        let state_machine = StateMachine::new(applied.clone(), log.clone(), Arc::clone(&generations), rules);
        let network = Network(Arc::clone(&peers), log.clone(), Arc::clone(&generations));
        let raft = random.provide(Raft::new(id, config, network, log.clone(), state_machine)).await;
        let raft = raft.map_err(|error| raft_error(&error))?;

        let leading = Arc::new(Leading::new(quartz));
        let (proposer, packing) = Proposer::new(
            raft.clone(),
            Arc::clone(&leading),
            log.clone(),
            applied.clone(),
            max_lease_bytes,
            since,
        );
        tasks.start("proposals", packing);
        let (reads, confirming) = Reads::new(ReadIndex {
            id,
            raft: raft.clone(),
            applied: applied.clone(),
            leading: Arc::clone(&leading),
            peers: Arc::clone(&peers),
        });
        tasks.start("linearizable reads", confirming);
        let replica = Arc::new(Replica {
            id,
            raft: raft.clone(),
            applied,
            leading,
            proposer,
            log: log.clone(),
            reads,
            peers: Arc::clone(&peers),
            mirror: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
            given_up: GivenUp::default(),
            cut_off: tokio::sync::watch::Sender::default(),
            leader_url: Default::default(),
        });
        let handle = Handle::new(Arc::clone(&replica));
        let _ = server.raft.set(raft.clone());
        let _ = server.service.handle.set(handle.clone());
        // From here on members are let in.
        peers.attach(&raft);
        tasks.start("signs of life", Arc::clone(&peers).ask_the_silent());

        let start = Arc::new(NewCluster { first_revision, elders, clock: wall_clock });
        tasks.start("the leadership", lead(Arc::clone(&replica), start));
        let before = members.iter().filter(|member| **member < id).count() as u64;
        let compaction = Compaction {
            raft: raft.clone(),
            log,
            generations,
            after_bytes: snapshot_after_bytes,
            head_start_bytes: snapshot_after_bytes * before / members.len() as u64,
        };
        tasks.start("snapshots", compaction.run());
        let watching = fitness::watch(Arc::clone(&replica), tasks.fault.clone());
        tasks.start("the fitness to lead", watching);
        let comparing = divergence::watch(Arc::clone(&replica), Arc::clone(&dir), tasks.fault.clone());
        tasks.start("the comparison with the other nodes", comparing);
        let condemned = condemned::watch(directory, Arc::clone(&dir), tasks.fault.clone());
        tasks.start("refusals by the other nodes", condemned);
        tasks.start("calls to the leader", Arc::clone(&peers).call_leader());
        tasks.start("members that move", Arc::clone(&replica).record_moves());
        tasks.start("new members", replica.promote_learners());
        if server.service.founding.is_founder() && !matches!(raft.is_initialized().await, Ok(true)) {
            tasks.start_once(
                async move { server.service.founding.finish(peers, raft, cluster, members).await },
            );
        }
        Ok(Self { handle, tasks, dir })
    }

    /// The replicated table. Clones may outlive the node; they answer [`Unanswered`](crate::Unanswered) then.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns, with the reason, when the node cannot go on: a disk that failed, a log that cannot be applied, a cluster that
    /// knows it as another, a task that ended.
    pub async fn failed(&self) -> String {
        let raft = &self.handle.shared.raft;
        // The leader changes seldom, the other metrics with every entry. All channels close when Raft ends.
        let mut server = raft.server_metrics();
        let raft_ends = async { while server.changed().await.is_ok() {} };
        let mut fault = self.tasks.fault.subscribe();
        let fault = tokio::select! {
            biased;
            Ok(reason) = fault.wait_for(Option::is_some) => reason.clone(),
            () = raft_ends => None,
        };
        // Some tasks end because Raft has: then its reason counts.
        match (&raft.metrics().borrow_watched().running_state, fault) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(fault)) => fault,
            (Ok(()), None) => "raft has stopped".to_owned(),
        }
    }

    /// Hands the leadership to another member, if this node leads and there is one. Waits for at most `within`.
    pub async fn hand_over(&self, within: Duration) {
        let replica = &self.handle.shared;
        if let Some(to) = replica.successor() {
            replica.hand_over(to, within).await;
        }
    }

    /// Stops: the queued part of the log is written, and the data directory is free again, unless a snapshot is still read or
    /// written: then that holds it until it ends.
    pub async fn stop(self) {
        if let Err(error) = self.handle.shared.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
        self.tasks.stop().await;
        drop(self.dir);
    }
}

/// Finds the newest usable snapshot, and starts log and state from there.
async fn load(
    dir: &Arc<DataDir>,
    log: &LogStore,
    applied: &Applied,
    tail_bytes: u64,
    supported: RulesRange,
) -> Result<Arc<Generations>, StartError> {
    let failed = |error| match error {
        LoadError::Rules(error) => StartError::Rules(error),
        error @ LoadError::Unusable { .. } => StartError::SnapshotsDamaged(error.to_string()),
        error => StartError::Snapshots(error.to_string()),
    };
    let generations = Generations::open(Arc::clone(dir), supported).map_err(|error| failed(error.into()))?;
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

fn wal_options(snapshot_after_bytes: u64) -> ringfence_wal::Options {
    // A segment is deleted as a whole, so none is larger than what one snapshot frees.
    let segment_bytes = snapshot_after_bytes.clamp(32 << 10, 64 << 20);
    ringfence_wal::Options {
        on_flush: Some(Arc::new(|took, bytes| {
            measure::LOG_FLUSH_SECONDS.get().record(took.as_secs_f64());
            measure::LOG_WRITTEN_BYTES.get().increment(bytes as u64);
        })),
        segment_bytes,
        // In whole blocks, so that the log is written past the page cache.
        step_bytes: (segment_bytes / 8) as u32 & !4_095,
        ..ringfence_wal::Options::default()
    }
}

#[cfg(test)]
mod tests;
