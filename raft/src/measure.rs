//! The metrics of this crate.

use ringfence_lease::{Change, Event};
use ringfence_metric::{Counter, Gauge, Histogram, metrics};
use ringfence_wire::EndReason;

const RELEASED: &str = "released";
const EXPIRED: &str = "expired";
const REVOKED: &str = "revoked";
const ABANDONED: &str = "abandoned";

metrics! {
    pub METRICS;
    LEASE_ENDS: Counter = Counter::new(
        "ringfence_lease_end_total",
        "Ended leases, by reason, counted by the leader that proposed the end: sum over all nodes. Counts can get lost when the leader changes.",
    ).by("reason", &[RELEASED, EXPIRED, REVOKED, ABANDONED]);
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

/// Counts the end of a lease. Call it only for entries that this node proposed: then the sum over all nodes counts each end once.
pub(crate) fn changed(event: &Event) {
    if let Change::Ended(reason) = event.change {
        let reason = match reason {
            EndReason::Released => RELEASED,
            EndReason::Expired => EXPIRED,
            EndReason::Revoked => REVOKED,
            EndReason::Abandoned => ABANDONED,
        };
        LEASE_ENDS.of(reason).increment(1);
    }
}
