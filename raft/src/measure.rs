//! The metrics of this crate.

use ringfence_metric::{Counter, Gauge, Histogram, metrics};
use ringfence_wire::{ClusterStatus, Role};

use crate::status::Unfinished;

metrics! {
    pub METRICS;
    LEASE_ENDS: Counter = Counter::new(
        "ringfence_lease_end_total",
        "Ended leases, by reason, counted by the leader that proposed the end: sum over all nodes. Counts can get lost when the leader changes.",
    ).by("reason", &["released", "expired", "revoked", "abandoned"]);
    COMMANDS_APPLIED: Counter = Counter::new(
        "ringfence_raft_commands_applied_total",
        "Commands that this node applied, including the replay of the log at start.",
    );
    LEADER_CHANGES: Counter = Counter::new(
        "ringfence_raft_leader_changes_total",
        "Changes of the leader that this node saw, the first included.",
    );
    COPIES_REFUSED: Counter = Counter::new(
        "ringfence_peer_copies_refused_total",
        "Refusals of a node, or by one, because a data directory was copied or turned back, or lost what was acknowledged.",
    );
    LOG_WRITTEN_BYTES: Counter = Counter::new(
        "ringfence_raft_log_written_bytes_total",
        "Bytes that this node wrote to its log.",
    );
    LOG_FLUSH_SECONDS: Histogram = Histogram::new(
        "ringfence_raft_log_flush_seconds",
        "Time to write and sync one flush of the log on this node's disk.",
    );
    LOG_SINCE_SNAPSHOT_BYTES: Gauge = Gauge::new(
        "ringfence_raft_log_since_snapshot_bytes",
        "Bytes of log since this node's newest snapshot.",
    );
    LOG_MEMORY_BYTES: Gauge = Gauge::new(
        "ringfence_raft_log_memory_bytes",
        "Memory that the entries of this node's log take. At most about what it grows by during two snapshots.",
    );
    PROPOSAL_SECONDS: Histogram = Histogram::new(
        "ringfence_raft_proposal_duration_seconds",
        "Time from the proposal of an entry by this node, as the leader, until this node has applied it.",
    );
    SNAPSHOT_SECONDS: Histogram = Histogram::new(
        "ringfence_raft_snapshot_seconds",
        "Time to write a snapshot on this node.",
    );
    DIFFERING_NODES: Gauge = Gauge::new(
        "ringfence_raft_differing_nodes",
        "Voters that were found not to do the same as this node, until they are replaced. At least one state is wrong.",
    );
    REVISION: Gauge = Gauge::new(
        "ringfence_revision",
        "Revision of this node's table: its first revision plus the number of changes.",
    );
    LEASES_LIVE: Gauge = Gauge::new(
        "ringfence_leases_live",
        "Live leases in this node's table. Equal on nodes that applied the same entries.",
    );
    WAITERS: Gauge = Gauge::new(
        "ringfence_waiters",
        "Queued leases in this node's table. Equal on nodes that applied the same entries.",
    );
    LEASE_BYTES: Gauge = Gauge::new(
        "ringfence_lease_bytes",
        "About how much memory all leases in this node's table take. Equal on nodes that applied the same entries.",
    );
    LEASE_BYTES_MOST: Gauge = Gauge::new(
        "ringfence_lease_bytes_most",
        "Maximum of ringfence_lease_bytes, of the leader: new leases are refused at it. NaN before rules 2.",
    );
    HAS_LEADER: Gauge = Gauge::new(
        "ringfence_raft_has_leader",
        "1 if this node has contact with a leader, or leads with a quorum. The cluster has a leader if a majority of the nodes reports 1.",
    );
    IS_LEADER: Gauge = Gauge::new("ringfence_raft_is_leader", "1 if this node leads.");
    TERM: Gauge = Gauge::new("ringfence_raft_term", "Raft term of this node.");
    LAST_LOG_INDEX: Gauge = Gauge::new(
        "ringfence_raft_last_log_index",
        "Index of the last entry in this node's log.",
    );
    COMMITTED_INDEX: Gauge = Gauge::new(
        "ringfence_raft_committed_index",
        "Index of the last entry that this node knows to be committed.",
    );
    APPLIED_INDEX: Gauge = Gauge::new(
        "ringfence_raft_applied_index",
        "Index of the last entry that this node applied.",
    );
    APPLY_LAG_ENTRIES: Gauge = Gauge::new(
        "ringfence_raft_apply_lag_entries",
        "Entries that this node knows to be committed but has not applied.",
    );
    RULES: Gauge = Gauge::new(
        "ringfence_raft_rules",
        "Version of the rules by which this node's table decides.",
    );
    RULES_SUPPORTED: Gauge = Gauge::new(
        "ringfence_raft_rules_supported",
        "Newest version of the rules that the programs of all members support; NaN if this node does not know all programs.",
    );
    PROPOSAL_PENDING_SECONDS: Gauge = Gauge::new(
        "ringfence_raft_proposal_pending_seconds",
        "Age of the oldest entry that this node proposed as the leader and has not applied yet; 0 if none.",
    );
    LOG_FLUSH_PENDING_SECONDS: Gauge = Gauge::new(
        "ringfence_raft_log_flush_pending_seconds",
        "Age of the flush in progress on this node's disk; 0 if none.",
    );
}

/// Sets the gauges that are not kept up to date. The leases take `bytes` of `max_bytes`.
pub(crate) fn set(status: &ClusterStatus, bytes: u64, max_bytes: Option<u64>, unfinished: Unfinished) {
    let set = |gauge: &Gauge, value: u64| gauge.get().set(value as f64);
    set(&HAS_LEADER, status.leader.is_some().into());
    set(&IS_LEADER, (status.role == Role::Leader).into());
    set(&TERM, status.term);
    set(&LAST_LOG_INDEX, status.last_log_index.unwrap_or(0));
    set(&COMMITTED_INDEX, status.committed_index.unwrap_or(0));
    set(&APPLIED_INDEX, status.applied_index.unwrap_or(0));
    let lag = status.committed_index.unwrap_or(0).saturating_sub(status.applied_index.unwrap_or(0));
    set(&APPLY_LAG_ENTRIES, lag);
    set(&RULES, status.rules.into());
    // If it is not known, it is not a number, which no alert takes for one.
    RULES_SUPPORTED.get().set(status.rules_supported.map_or(f64::NAN, f64::from));
    set(&REVISION, status.revision.0);
    set(&LEASES_LIVE, status.live_leases);
    set(&WAITERS, status.waiters);
    set(&LEASE_BYTES, bytes);
    LEASE_BYTES_MOST.get().set(max_bytes.map_or(f64::NAN, |max| max as f64));
    PROPOSAL_PENDING_SECONDS.get().set(unfinished.proposal);
    LOG_FLUSH_PENDING_SECONDS.get().set(unfinished.flush);
}
