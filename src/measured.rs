//! What is measured, in all rooms: the one list of names, which `/metrics` shows as HELP.
//!
//! Counters are of the process and begin at 0 with it. What is counted where a request is answered, or where an entry of
//! the log is proposed, is counted by one node; so the sum over all nodes is that of the cluster. What tells of the table
//! is the same on every node that has applied as much; so the largest is the newest.

use metrics::{describe_counter, describe_gauge, describe_histogram};

const COUNTERS: &[(&str, &str)] = &[
    (
        "ringfence_acquire_total",
        "Acquires answered by this node: granted, standing (a repeat), waiting (the place is kept), or the name of the problem.",
    ),
    ("ringfence_renew_total", "Renewals answered by this node: renewed, or the name of the problem."),
    ("ringfence_release_total", "Releases answered by this node, repeated ones too."),
    (
        "ringfence_lease_end_total",
        "Granted leases that ended, by reason. Each end is counted by one node, the leader that proposed it: sum over all nodes. Ends that were proposed right before a change of the leader may be counted by none.",
    ),
    (
        "ringfence_http_requests_total",
        "Requests to this node, by method, route and status: that of the answer, or closed where the connection was closed before.",
    ),
    (
        "ringfence_http_connections_closed_total",
        "Connections that this node closed, by reason: evicted (there were too many, and it was idle for longest), refused (none was idle), silent, late (a head did not arrive in time), unread (its answer was not read).",
    ),
    (
        "ringfence_raft_leader_changes_total",
        "Leaders that this node came to know one after the other, the first included.",
    ),
    (
        "ringfence_raft_commands_applied_total",
        "Commands that this node applied, those included that it reads again from its log after a start.",
    ),
    ("ringfence_raft_log_written_bytes_total", "Bytes that this node wrote to its log."),
    (
        "ringfence_watches_cut_off_total",
        "Watches that this node ended because the history had gone past them, by reason.",
    ),
    ("ringfence_mirror_published_total", "Hashes that this node wrote to Redis."),
    ("ringfence_mirror_errors_total", "Failed connections to Redis and refused writes."),
    ("ringfence_mirror_repaired_total", "Hashes in Redis that were no state of a key, and were replaced."),
    (
        "ringfence_mirror_foreign_total",
        "Hashes in Redis that no leader can have written, and that were replaced: a foreign hand.",
    ),
];

const GAUGES: &[(&str, &str)] = &[
    ("ringfence_build_info", "1; the label tells the version of the program."),
    (
        "ringfence_revision",
        "The revision of this node's table: the number of changes made so far, on top of where it began.",
    ),
    (
        "ringfence_leases_live",
        "Live leases in this node's table. The same on every node that has applied as much.",
    ),
    (
        "ringfence_waiters",
        "Leases that wait in a queue, in this node's table. The same on every node that has applied as much.",
    ),
    ("ringfence_watchers", "Watches that are open at this node."),
    ("ringfence_http_connections", "Connections of clients to this node."),
    ("ringfence_http_connections_most", "How many there may be."),
    (
        "ringfence_raft_has_leader",
        "1 where this node hears a leader, or leads with a quorum behind it. There is one if a majority says so.",
    ),
    ("ringfence_raft_is_leader", "1 where this node leads."),
    ("ringfence_raft_term", "This node's Raft term."),
    ("ringfence_raft_last_log_index", "The index of the last entry in this node's log."),
    ("ringfence_raft_committed_index", "Up to where this node knows the log to be committed."),
    ("ringfence_raft_applied_index", "Up to where this node has applied the log."),
    ("ringfence_raft_apply_lag_entries", "Entries that this node knows to be committed and has not applied."),
    (
        "ringfence_raft_log_since_snapshot_bytes",
        "Bytes of log since the newest snapshot of this node: it grows, and falls when one is taken.",
    ),
    (
        "ringfence_raft_proposal_pending_seconds",
        "How long ago this node, leading, proposed the oldest entry that is not applied yet; 0 where all are.",
    ),
    (
        "ringfence_raft_log_flush_pending_seconds",
        "How long this node's disk has been at the flush that is under way; 0 where none is.",
    ),
    (
        "ringfence_loop_lag_longest_seconds",
        "The longest lag of the event loop that runs Raft, in the last 30 to 60 s.",
    ),
    ("ringfence_disk_size_bytes", "The size of the file system that this node's data is on."),
    (
        "ringfence_disk_available_bytes",
        "How much of it is free for this node. A node whose disk is full stops.",
    ),
    (
        "ringfence_mirror_state",
        "1 for the state that this node's mirror is in: standby (it does not lead), published, reconciling, connecting, failing, occupied (another cluster publishes there).",
    ),
    ("ringfence_mirror_lag_keys", "Keys that have changed and are not known to stand in Redis."),
    ("ringfence_mirror_lag_seconds", "How long ago the first of these changed."),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "ringfence_acquire_wait_seconds",
        "How long acquires that were granted from a queue had waited, as the node that answered them saw it.",
    ),
    (
        "ringfence_http_request_duration_seconds",
        "From a request's head to its answer, or to the end of its connection before, by method and route; for an acquire with the time it waited.",
    ),
    (
        "ringfence_raft_proposal_duration_seconds",
        "From when this node, leading, proposed an entry until it was committed and applied.",
    ),
    (
        "ringfence_raft_log_flush_seconds",
        "How long this node's disk took to write and sync what a flush had gathered.",
    ),
    ("ringfence_raft_snapshot_seconds", "How long this node took to write a snapshot."),
    (
        "ringfence_loop_lag_seconds",
        "How late a timer fired on the thread that runs Raft, the table and the peers: all of them wait as long.",
    ),
];

/// Tells the recorder. To be called once it is installed.
pub(crate) fn describe() {
    COUNTERS.iter().for_each(|(name, help)| describe_counter!(*name, *help));
    GAUGES.iter().for_each(|(name, help)| describe_gauge!(*name, *help));
    HISTOGRAMS.iter().for_each(|(name, help)| describe_histogram!(*name, *help));
}
