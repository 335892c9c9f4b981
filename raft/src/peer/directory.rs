//! What a node knows of itself and of the others, and whom it lets in.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use openraft::Instant as _;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::callable::Callable;
use super::campaign::Campaign;
use super::handshake::{Channel, Hello, Processes, Program, Welcome};
use super::known::{Known, Process};
use super::transport::Transport;
use crate::applied::state_machine::Raft;
use crate::consensus::{Consensus, ELECTION_MS, Member, NodeId, StoredMembership, as_of, is_empty};
use crate::storage::identity::Identity;

/// How far a term may be above this node's own of [`BASELINE_FOR`] ago. A cluster that elects ten leaders a second takes 13
/// years for as many.
const MAX_TERMS_AHEAD: u64 = 1 << 32;
const BASELINE_FOR: Duration = Duration::from_secs(300);

/// A leader that was not heard for so long had gone, or the way from it was cut.
const UNHEARD: Duration = Duration::from_millis(ELECTION_MS.end);

/// How many reasons of one kind are logged why a peer is not reached: some name a time, and so are others each second.
const MAX_REASONS: usize = 4;

/// Whom a connection is to, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) to: NodeId,
    /// `None`: the membership does not name the node, so whichever answers.
    pub(super) incarnation: Option<Uuid>,
    pub(super) channel: Channel,
}

/// Who is who in this node's cluster, and where.
pub(crate) struct Directory {
    pub(crate) identity: Identity,
    /// This node's HTTP URL, for the others.
    pub(super) own_url: String,
    pub(crate) program: Program,
    /// The server owns it: a stopped node neither listens nor connects, even if a handle outlives it.
    transport: Weak<dyn Transport>,
    /// The addresses given by the operator.
    pub(super) addresses: BTreeMap<NodeId, String>,
    cluster: OnceLock<Uuid>,
    /// Absent until Raft runs.
    raft_metrics: OnceLock<WatchReceiverOf<Consensus, RaftServerMetrics<Consensus>>>,
    quorum_metrics: OnceLock<WatchReceiverOf<Consensus, RaftMetrics<Consensus>>>,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    /// The leader from which this node accepted something last, and when.
    followed: Mutex<Option<(Process, Instant)>>,
    baseline: Mutex<Option<Baseline>>,
    /// Why this process must not go on.
    pub(super) condemned: watch::Sender<Option<String>>,
    pub(super) campaign: Campaign,
    pub(crate) callable: Callable,
}

/// A term that this node had, and since when others are compared with it.
struct Baseline {
    term: u64,
    since: Instant,
}

#[derive(Default)]
struct Peer {
    url: Option<String>,
    /// What an incarnation said of its program when this node last connected to it.
    program: Option<(Uuid, Program)>,
    /// What was logged of why it was not reached since it last was. That a connection was closed says less than why there is no other one.
    failures: Vec<(io::ErrorKind, String)>,
    known: Known,
}

impl Directory {
    pub(crate) fn new(
        identity: Identity,
        own_url: String,
        addresses: BTreeMap<NodeId, String>,
        transport: &Arc<dyn Transport>,
        program: Program,
    ) -> Self {
        Self {
            cluster: identity.cluster.map_or_else(OnceLock::new, OnceLock::from),
            identity,
            own_url,
            program,
            transport: Arc::downgrade(transport),
            addresses,
            raft_metrics: OnceLock::new(),
            quorum_metrics: OnceLock::new(),
            peers: Mutex::default(),
            followed: Mutex::default(),
            baseline: Mutex::default(),
            condemned: watch::Sender::new(None),
            campaign: Campaign::default(),
            callable: Callable::default(),
        }
    }

    /// The cluster's id; nil before there is one.
    pub(crate) fn cluster_id(&self) -> Uuid {
        self.cluster().unwrap_or_default()
    }

    pub(super) fn cluster(&self) -> Option<Uuid> {
        self.cluster.get().copied()
    }

    /// From now on this node belongs to `cluster`.
    pub(crate) fn join(&self, cluster: Uuid) {
        self.cluster.get_or_init(|| cluster);
    }

    /// From now on the membership is what `raft` says, and peers are let in.
    pub(super) fn attach(&self, raft: &Raft) {
        self.quorum_metrics.get_or_init(|| raft.metrics());
        self.raft_metrics.get_or_init(|| raft.server_metrics());
    }

    /// The newest membership that this node knows, committed or not.
    pub(crate) fn membership(&self) -> Option<Arc<StoredMembership>> {
        Some(self.memberships()?.0)
    }

    /// That, and the newest that no leader can undo.
    fn memberships(&self) -> Option<(Arc<StoredMembership>, Arc<StoredMembership>)> {
        let metrics = self.raft_metrics.get()?.borrow_watched();
        let (effective, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
        Some((Arc::clone(effective), Arc::clone(committed)))
    }

    /// What the newest membership records of `id`.
    pub(super) fn member(&self, id: NodeId) -> Option<Member> {
        self.membership()?.get_node(&id).cloned()
    }

    /// The position of the newest membership, if it includes this node as it is now.
    pub(super) fn member_as_of(&self) -> Option<(u64, u64)> {
        let membership = self.membership()?;
        let own = membership.get_node(&self.identity.node_id)?;
        if own.incarnation == self.identity.incarnation { as_of(&membership) } else { None }
    }

    pub(super) fn transport(&self) -> io::Result<Arc<dyn Transport>> {
        self.transport.upgrade().ok_or_else(|| io::Error::other("this node has stopped"))
    }

    /// Notes the address of a node that is to become a member.
    pub(super) fn note_given(&self, id: NodeId, address: &str) {
        self.peers().entry(id).or_default().known.whereabouts.given = Some(address.to_owned());
    }

    /// Forgets everything about `id`, which did not become a member.
    pub(super) fn forget(&self, id: NodeId) {
        self.peers().remove(&id);
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.peers().len()
    }

    /// The HTTP URL of a node, once it is known.
    pub(crate) fn url(&self, id: NodeId) -> Option<String> {
        if id == self.identity.node_id {
            return Some(self.own_url.clone());
        }
        self.peers().get(&id)?.url.clone()
    }

    /// The program that this incarnation of `id` reported when this node last connected to it.
    pub(crate) fn program_of(&self, id: NodeId, incarnation: Uuid) -> Option<Program> {
        if id == self.identity.node_id {
            return Some(self.program.clone());
        }
        let peers = self.peers();
        let (known, program) = peers.get(&id)?.program.as_ref()?;
        (*known == incarnation).then(|| program.clone())
    }

    pub(super) fn note_welcome(&self, id: NodeId, welcome: Welcome, program: Program) {
        let mut peers = self.peers();
        let peer = peers.entry(id).or_default();
        peer.url = Some(welcome.url);
        peer.program = Some((welcome.incarnation, program));
    }

    /// Forgets all nodes that are neither members nor about to become members, and the programs of other incarnations.
    pub(super) fn forget_others(&self, membership: &StoredMembership) {
        if is_empty(membership) {
            return;
        }
        self.peers().retain(|id, peer| {
            let Some(member) = membership.get_node(id) else {
                return peer.known.whereabouts.given.is_some();
            };
            // The membership has it now.
            peer.known.whereabouts.given = None;
            peer.program.take_if(|(incarnation, _)| member.incarnation != *incarnation);
            true
        });
    }

    /// Logs that `id` became unreachable, each reason once and [`MAX_REASONS`] of a kind at most, or that it is reachable again.
    pub(super) fn note_reachable(&self, id: NodeId, result: Result<(), &io::Error>) {
        let mut peers = self.peers();
        let peer = peers.entry(id).or_default();
        match result {
            Ok(()) if peer.failures.is_empty() => {}
            Ok(()) => {
                tracing::info!(peer = id, "peer is reachable again");
                peer.failures.clear();
            }
            Err(error) => {
                let (kind, why) = (error.kind(), error.to_string());
                let alike = || peer.failures.iter().filter(|(other, _)| *other == kind);
                if alike().count() < MAX_REASONS && !alike().any(|(_, other)| *other == why) {
                    tracing::warn!(peer = id, error = why, "peer cannot be reached");
                    peer.failures.push((kind, why));
                }
            }
        }
    }

    /// Notes that this node accepted an entry or a heartbeat of this leader.
    pub(super) fn note_followed(&self, leader: Process) {
        let now = Instant::now();
        let before = self.followed.lock().expect(UNPOISONED).replace((leader, now));
        // What it did not answer meanwhile says nothing of the way to it.
        if before.is_none_or(|(known, at)| known != leader || now - at > UNHEARD) {
            self.callable.begins(leader);
        }
    }

    /// Whether the last attempt to connect to `id` succeeded.
    pub(super) fn is_well(&self, id: NodeId) -> bool {
        self.peers().get(&id).is_some_and(|peer| peer.failures.is_empty())
    }

    /// Whether this node followed a leader within the last while.
    pub(crate) fn followed_within(&self, within: Duration) -> bool {
        self.leader_within(within).is_some()
    }

    pub(super) fn leader_within(&self, within: Duration) -> Option<Process> {
        let followed = *self.followed.lock().expect(UNPOISONED);
        followed.filter(|(_, at)| at.elapsed() < within).map(|(leader, _)| leader)
    }

    /// An error if no honest node can have reached `term` yet. A term never goes back, and the next one must exist: one message
    /// with the last term there is would end all elections. The comparison is with a term that this node had at most
    /// [`BASELINE_FOR`] ago, because several messages could go further.
    pub(super) fn check_term(&self, term: u64) -> io::Result<()> {
        let Some(raft) = self.raft_metrics.get() else { return Ok(()) };
        let own = raft.borrow_watched().vote.leader_id.term;
        let mut baseline = self.baseline.lock().expect(UNPOISONED);
        let fresh = || Baseline { term: own, since: Instant::now() };
        let kept = baseline.take().filter(|kept| kept.since.elapsed() < BASELINE_FOR).unwrap_or_else(fresh);
        let most = kept.term.saturating_add(MAX_TERMS_AHEAD);
        *baseline = Some(kept);
        if term <= most { Ok(()) } else { Err(refusal(format!("the term {term} is above {most}"))) }
    }

    /// Whether the caller means this node, may open this channel, and does not run with a copy of a data directory.
    pub(super) async fn admit(&self, hello: &Hello, processes: &Processes) -> io::Result<()> {
        self.check_hello(hello)?;
        if hello.channel != Channel::Founding {
            let caller = (hello.from, hello.incarnation);
            self.check_alone(hello, processes).await?;
            self.check_own(caller, processes.met).await?;
            self.note_called(hello.from, &processes.places);
            if let Some(caller) = self.peers().get_mut(&hello.from) {
                caller.url = Some(hello.url.clone());
                caller.known.refused = None;
            }
        }
        Ok(())
    }

    fn check_hello(&self, hello: &Hello) -> io::Result<()> {
        let own = &self.identity;
        let id = own.node_id;
        if hello.group != 0 {
            return Err(refusal(format!("there is no Raft group {}", hello.group)));
        }
        if hello.to != id {
            return Err(refusal(format!("this is node {id}, not node {}", hello.to)));
        }
        let is_other = hello.to_incarnation.is_some_and(|expected| expected != own.incarnation);
        if is_other {
            return Err(refusal(format!("node {id} has another data directory than the cluster knows")));
        }
        if hello.channel == Channel::Founding {
            return Ok(());
        }
        if self.raft_metrics.get().is_none() {
            let reason = format!("node {id} does not belong to a cluster yet, or is still starting");
            return Err(io::Error::new(ErrorKind::NotConnected, reason));
        }
        let cluster = self.cluster_id();
        if hello.cluster != Some(cluster) {
            return Err(refusal(format!("node {id} belongs to cluster {cluster}, the caller does not")));
        }
        self.check_caller(hello)?;
        // Anybody can send a hello: it adds no entry for a node that the membership does not name.
        if self.is_named(hello.from) {
            self.peers().entry(hello.from).or_default();
        }
        Ok(())
    }

    /// Whether the newest membership names `id`, or there is none yet.
    pub(super) fn is_named(&self, id: NodeId) -> bool {
        self.membership().is_none_or(|known| is_empty(&known) || known.get_node(&id).is_some())
    }

    /// Whether the caller is a member with the incarnation that this node knows, unless the caller knows a newer membership.
    ///
    /// A removal counts once it is committed: until then another leader may undo it, even the removed node. That another
    /// incarnation has the caller's id counts at once: the caller's removal was committed before the other was added.
    pub(super) fn check_caller(&self, hello: &Hello) -> io::Result<()> {
        let Some((effective, committed)) = self.memberships().filter(|_| hello.channel != Channel::Founding)
        else {
            return Ok(());
        };
        let id = hello.from;
        let is_other = effective.get_node(&id).is_some_and(|node| node.incarnation != hello.incarnation);
        // A wiped node knows `None`, which is less than any position.
        if is_other && hello.member_as_of <= as_of(&effective) {
            return Err(refusal(format!(
                "node {id} comes with another data directory than the cluster knows: it may have voted or acknowledged \
                 what it no longer remembers",
            )));
        }
        let committed_as_of = as_of(&committed);
        let is_member = committed.get_node(&id).is_some();
        // Before the first membership is committed, nobody is known not to be a member.
        if !is_member && committed_as_of.is_some() && hello.member_as_of <= committed_as_of {
            return Err(refusal(format!("node {id} is no member of the cluster")));
        }
        // Anybody can claim to know a newer membership. The leader of this node knows it, too, or is the caller.
        if (is_other || !self.is_named(id)) && self.has_leader_besides((id, hello.incarnation)) {
            return Err(refusal(format!("node {id} is no member that the leader knows")));
        }
        Ok(())
    }

    /// Whether this node has just led a quorum, or followed a leader other than this process.
    pub(super) fn has_leader_besides(&self, process: Process) -> bool {
        let lately = Duration::from_millis(ELECTION_MS.start);
        let leads = |metrics: &RaftMetrics<Consensus>| {
            let is_alone = || metrics.membership_config.membership().voter_ids().all(|id| id == metrics.id);
            let is_acknowledged = metrics.last_quorum_acked.is_some_and(|at| at.elapsed() < lately);
            metrics.state.is_leader() && (is_acknowledged || is_alone())
        };
        self.leader_within(lately).is_some_and(|leader| leader != process)
            || self.quorum_metrics.get().is_some_and(|metrics| leads(&metrics.borrow_watched()))
    }

    /// Works on what is known of the processes of `id`, or on nothing if no member has that id.
    pub(super) fn with_known<T>(&self, id: NodeId, work: impl FnOnce(&mut Known) -> T) -> T {
        match self.peers().get_mut(&id) {
            Some(peer) => work(&mut peer.known),
            None => work(&mut Known::default()),
        }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Peer>> {
        self.peers.lock().expect(UNPOISONED)
    }
}

const UNPOISONED: &str = "no panic while the directory is locked";

pub(super) fn refusal(reason: String) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, reason)
}
