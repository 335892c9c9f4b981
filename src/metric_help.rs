//! The HELP texts of the metrics of all crates.
//!
//! Counters are per process and start at 0. A request is counted by the node that answers it, and an entry by the node that
//! proposes it: sum over all nodes. Metrics of the table are equal on all nodes that have applied the same entries: take the
//! maximum.

use metrics::{describe_counter, describe_gauge, describe_histogram};

const COUNTERS: &[(&str, &str)] = &[
    (
        "ringfence_acquire_total",
        "Acquires that this node answered, by result: granted, standing (a repeat got the same grant), waiting (its place is kept), or the problem.",
    ),
    ("ringfence_renew_total", "Renewals that this node answered, by result: renewed, or the problem."),
    ("ringfence_release_total", "Releases that this node answered, repeats included."),
    (
        "ringfence_lease_end_total",
        "Ended leases, by reason, counted by the leader that proposed the end: sum over all nodes. Counts can get lost when the leader changes.",
    ),
    (
        "ringfence_http_requests_total",
        "Requests to this node, by method, route and status; closed if the connection closed before the response.",
    ),
    (
        "ringfence_http_connections_closed_total",
        "Connections that this node closed, by reason: evicted (no room for a new one), silent, late (slow request head), unread (response not read).",
    ),
    (
        "ringfence_tls_handshakes_failed_total",
        "TLS handshakes with clients that failed, and plain connections that were refused.",
    ),
    (
        "ringfence_peer_copies_refused_total",
        "Refusals of a node, or by one, because a data directory was copied or turned back, or lost what was acknowledged.",
    ),
    ("ringfence_raft_leader_changes_total", "Changes of the leader that this node saw, the first included."),
    (
        "ringfence_raft_commands_applied_total",
        "Commands that this node applied, including the replay of the log at start.",
    ),
    ("ringfence_raft_log_written_bytes_total", "Bytes that this node wrote to its log."),
    (
        "ringfence_watches_cut_off_total",
        "Watches that this node ended because it no longer had the changes that they needed, by reason.",
    ),
    (
        "ringfence_log_lines_lost_total",
        "Log lines of this node that were lost: standard error was not read in time, or refused them.",
    ),
    ("ringfence_mirror_published_total", "Hashes that this node wrote to Redis."),
    ("ringfence_mirror_errors_total", "Failed connections to Redis, and writes that Redis refused."),
    ("ringfence_mirror_repaired_total", "Malformed hashes in Redis that were replaced."),
    (
        "ringfence_mirror_foreign_total",
        "Hashes in Redis that no leader can have written, and that were replaced: somebody else writes to the mirror.",
    ),
];

const GAUGES: &[(&str, &str)] = &[
    ("ringfence_build_info", "Always 1. The label has the version."),
    ("ringfence_revision", "Revision of this node's table: its first revision plus the number of changes."),
    (
        "ringfence_leases_live",
        "Live leases in this node's table. Equal on nodes that applied the same entries.",
    ),
    (
        "ringfence_waiters",
        "Queued leases in this node's table. Equal on nodes that applied the same entries.",
    ),
    (
        "ringfence_lease_bytes",
        "About how much memory all leases in this node's table take. Equal on nodes that applied the same entries.",
    ),
    (
        "ringfence_lease_bytes_most",
        "Maximum of ringfence_lease_bytes, of the leader: new leases are refused at it. NaN before rules 2.",
    ),
    ("ringfence_watchers", "Open watches at this node."),
    ("ringfence_http_connections", "Open client connections."),
    ("ringfence_http_connections_most", "Maximum number of client connections."),
    (
        "ringfence_raft_has_leader",
        "1 if this node has contact with a leader, or leads with a quorum. The cluster has a leader if a majority of the nodes reports 1.",
    ),
    ("ringfence_raft_is_leader", "1 if this node leads."),
    ("ringfence_raft_term", "Raft term of this node."),
    ("ringfence_raft_last_log_index", "Index of the last entry in this node's log."),
    ("ringfence_raft_committed_index", "Index of the last entry that this node knows to be committed."),
    ("ringfence_raft_applied_index", "Index of the last entry that this node applied."),
    ("ringfence_raft_apply_lag_entries", "Entries that this node knows to be committed but has not applied."),
    ("ringfence_raft_log_since_snapshot_bytes", "Bytes of log since this node's newest snapshot."),
    (
        "ringfence_raft_log_memory_bytes",
        "Memory that the entries of this node's log take. At most about what it grows by during two snapshots.",
    ),
    ("ringfence_raft_rules", "Version of the rules by which this node's table decides."),
    (
        "ringfence_raft_rules_supported",
        "Newest version of the rules that the programs of all members support; NaN if this node does not know all programs.",
    ),
    (
        "ringfence_raft_differing_nodes",
        "Voters that were found not to do the same as this node, until they are replaced. At least one state is wrong.",
    ),
    (
        "ringfence_raft_proposal_pending_seconds",
        "Age of the oldest entry that this node proposed as the leader and has not applied yet; 0 if none.",
    ),
    (
        "ringfence_raft_log_flush_pending_seconds",
        "Age of the flush in progress on this node's disk; 0 if none.",
    ),
    ("ringfence_loop_lag_longest_seconds", "Longest lag of the Raft event loop in the last 30 to 60 s."),
    (
        "ringfence_tls_certificate_expires_seconds",
        "When the certificate in use ends, in seconds since the Unix epoch, by use: clients, peers (between nodes).",
    ),
    (
        "ringfence_files_refused",
        "1 if files cannot be used as they are now, so that what they contained before is in use. By use: clients and peers (certificates), access (rules).",
    ),
    ("ringfence_disk_size_bytes", "Size of the file system of this node's data."),
    ("ringfence_disk_available_bytes", "Free space on that file system. A node whose disk is full stops."),
    (
        "ringfence_mirror_state",
        "1 for the state of this node's mirror: standby (it does not lead), published, reconciling, connecting, failing, occupied (another cluster publishes to the same Redis).",
    ),
    ("ringfence_mirror_lag_keys", "Changed keys that are not known to be in Redis yet."),
    ("ringfence_mirror_lag_seconds", "Age of the oldest change that is not known to be in Redis yet."),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "ringfence_acquire_wait_seconds",
        "Time in the queue of acquires that were granted from it, as seen by the node that answered.",
    ),
    (
        "ringfence_http_request_duration_seconds",
        "Time from the head of a request to its response, or to the end of its connection, by method and route. Includes the wait of an acquire.",
    ),
    (
        "ringfence_raft_proposal_duration_seconds",
        "Time from the proposal of an entry by this node, as the leader, until this node has applied it.",
    ),
    ("ringfence_raft_log_flush_seconds", "Time to write and sync one flush of the log on this node's disk."),
    ("ringfence_raft_snapshot_seconds", "Time to write a snapshot on this node."),
    (
        "ringfence_loop_lag_seconds",
        "Delay of a timer on the thread that runs Raft, the table and the peers. All of these are delayed as much.",
    ),
];

/// Call once, after the recorder is installed.
pub(crate) fn describe() {
    COUNTERS.iter().for_each(|(name, help)| describe_counter!(*name, *help));
    GAUGES.iter().for_each(|(name, help)| describe_gauge!(*name, *help));
    HISTOGRAMS.iter().for_each(|(name, help)| describe_histogram!(*name, *help));
}
