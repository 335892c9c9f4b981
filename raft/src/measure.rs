//! The metrics of this crate.

use ringfence_metric::{Counter, Gauge, Histogram, metrics};

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
}
