//! How a node sees itself and the cluster.

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use ringfence_wire::{ClusterStatus, MemberStatus, Role};

use crate::consensus::{Member, NodeId};
use crate::replica::Replica;

/// The answer to `GET /v1/cluster`, without the mirror.
pub(crate) fn status(shared: &Replica) -> ClusterStatus {
    // Before the metrics are locked here: it locks them too.
    let leader = shared.leader();
    let rules_supported = shared.rules_supported();
    let (last_applied, rules, revision, at_ms, live, waiters) = {
        let applied = shared.applied.lock();
        let table = &applied.table;
        let (live, waiters) = (table.live(), table.waiters());
        (applied.last_applied, table.rules(), table.revision(), table.at_ms(), live, waiters)
    };
    // Raft waits while they are borrowed: nothing is waited for meanwhile.
    let metrics = shared.raft.metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.membership_config.membership();
    let votes = |id: &NodeId| membership.get_joint_config().iter().any(|voters| voters.contains(id));
    let lag = |id: &NodeId| {
        let last = metrics.last_log_index?;
        let matched = metrics.replication.as_ref()?.get(id)?;
        Some(last.saturating_sub(matched.as_ref().map_or(0, |id| id.index())))
    };
    let silent_ms = |id: &NodeId, member: &Member| {
        let silent_for = shared.peers.directory.silent_for((*id, member.incarnation))?;
        Some(u64::try_from(silent_for.as_millis()).unwrap_or(u64::MAX))
    };
    let members = membership.nodes().map(|(id, member)| {
        let program = shared.peers.directory.program_of(*id, member.incarnation);
        let status = MemberStatus {
            voter: votes(id),
            peer: member.peer.clone(),
            url: shared.peers.directory.url(*id),
            lag_entries: lag(id),
            rules: program.as_ref().map(|program| program.rules),
            silent_ms: silent_ms(id, member),
            refused: shared.peers.directory.refused(*id),
            version: program.map(|program| program.version).filter(|version| !version.is_empty()),
        };
        (*id, status)
    });
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
