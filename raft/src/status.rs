//! How a node sees itself and the cluster.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use ringfence_metric::Gauge;
use ringfence_wire::{ClusterStatus, MemberStatus, Revision, Role};

use crate::applied::table::Inner;
use crate::consensus::{Consensus, LogId, Member, NodeId};
use crate::measure;
use crate::replica::Replica;

/// What the applied state says.
pub(crate) struct Sums {
    last_applied: Option<LogId>,
    rules: u8,
    revision: Revision,
    at_ms: u64,
    live: usize,
    waiters: usize,
}

impl Sums {
    pub(crate) fn of(state: &Inner) -> Self {
        let table = &state.table;
        Self {
            last_applied: state.last_applied,
            rules: table.rules(),
            revision: table.revision(),
            at_ms: table.at_ms(),
            live: table.live(),
            waiters: table.waiters(),
        }
    }
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

/// The answer to `GET /v1/cluster`, without the mirror and certificates.
pub(crate) fn status(shared: &Replica, sums: Sums) -> ClusterStatus {
    let Sums { last_applied, rules, revision, at_ms, live, waiters } = sums;
    // Before the metrics are locked here: it locks them too.
    let leader = shared.leader();
    let rules_supported = shared.rules_supported();
    // Raft waits while they are borrowed: nothing is waited for meanwhile.
    let metrics = shared.raft.metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.membership_config.membership();
    let members = membership.nodes().map(|(id, member)| (*id, member_status(shared, &metrics, *id, member)));
    ClusterStatus {
        cluster_id: shared.peers.directory.cluster_id(),
        node_id: shared.id,
        role: role(metrics.state, leader == Some(shared.id)),
        term: metrics.current_term,
        leader,
        last_log_index: metrics.last_log_index,
        committed_index: metrics.local_committed.map(|id| id.index()),
        applied_index: last_applied.map(|id| id.index()),
        revision,
        at_ms,
        live_leases: live as u64,
        waiters: waiters as u64,
        members: members.collect(),
        mirror: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        rules,
        rules_supported,
        certificates: Vec::new(),
        files_refused: Vec::new(),
    }
}

/// Sets the gauges that are not kept up to date. The leases take `bytes` of `max_bytes`.
pub(crate) fn set_gauges(status: &ClusterStatus, bytes: u64, max_bytes: Option<u64>, unfinished: Unfinished) {
    let set = |gauge: &Gauge, value: u64| gauge.get().set(value as f64);
    set(&measure::HAS_LEADER, status.leader.is_some().into());
    set(&measure::IS_LEADER, (status.role == Role::Leader).into());
    set(&measure::TERM, status.term);
    set(&measure::LAST_LOG_INDEX, status.last_log_index.unwrap_or(0));
    set(&measure::COMMITTED_INDEX, status.committed_index.unwrap_or(0));
    set(&measure::APPLIED_INDEX, status.applied_index.unwrap_or(0));
    let lag = status.committed_index.unwrap_or(0).saturating_sub(status.applied_index.unwrap_or(0));
    set(&measure::APPLY_LAG_ENTRIES, lag);
    set(&measure::RULES, status.rules.into());
    // If it is not known, it is not a number, which no alert takes for one.
    measure::RULES_SUPPORTED.get().set(status.rules_supported.map_or(f64::NAN, f64::from));
    set(&measure::REVISION, status.revision.0);
    set(&measure::LEASES_LIVE, status.live_leases);
    set(&measure::WAITERS, status.waiters);
    set(&measure::LEASE_BYTES, bytes);
    measure::LEASE_BYTES_MOST.get().set(max_bytes.map_or(f64::NAN, |max| max as f64));
    measure::PROPOSAL_PENDING_SECONDS.get().set(unfinished.proposal);
    measure::LOG_FLUSH_PENDING_SECONDS.get().set(unfinished.flush);
}

fn member_status(
    shared: &Replica,
    metrics: &RaftMetrics<Consensus>,
    id: NodeId,
    member: &Member,
) -> MemberStatus {
    let (directory, process) = (&shared.peers.directory, (id, member.incarnation));
    let program = directory.program_of(id, member.incarnation);
    // Only a leader knows.
    let matched = metrics.replication.as_ref().and_then(|matched| matched.get(&id).copied());
    let lag = |last: u64| Some(last.saturating_sub(matched?.map_or(0, |id| id.index())));
    let mut voters = metrics.membership_config.membership().get_joint_config().iter();
    let in_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let silent_ms = directory.silent_for(process).map(in_ms);
    // What it said before it fell silent may be over.
    let is_heard = silent_ms.is_some_and(|ms| ms < MemberStatus::SILENT_MS);
    MemberStatus {
        voter: voters.any(|voters| voters.contains(&id)),
        peer: member.peer.clone(),
        url: directory.url(id),
        lag_entries: metrics.last_log_index.and_then(lag),
        rules: program.as_ref().map(|program| program.rules),
        silent_ms,
        cannot_call: matched.is_some() && is_heard && directory.callable.is_uncallable_for(process),
        snapshot_failure: matched.and_then(|_| directory.undelivered(process, metrics.current_term)),
        refused: directory.refused(id),
        certificate_ends_unix_s: None,
        version: program.map(|program| program.version).filter(|version| !version.is_empty()),
    }
}

/// A leader that has handed its leadership over, or that no quorum has acknowledged lately, is a follower already: it waits for a
/// leader.
fn role(state: ServerState, leads: bool) -> Role {
    match state {
        ServerState::Leader if leads => Role::Leader,
        ServerState::Leader => Role::Follower,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Learner => Role::Learner,
        ServerState::Shutdown => Role::Stopped,
    }
}
