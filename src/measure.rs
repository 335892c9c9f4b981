//! The metrics of the program, and the start of those of all crates.

use ringfence_metric::{Counter, Gauge, Histogram, Metric, metrics};

metrics! {
    METRICS;
    BUILD_INFO: Gauge = Gauge::new("ringfence_build_info", "Always 1. The label has the version.")
        .by("version", &[env!("CARGO_PKG_VERSION")]);
    LOG_LINES_LOST: Counter = Counter::new(
        "ringfence_log_lines_lost_total",
        "Log lines of this node that were lost: standard error was not read in time, or refused them.",
    );
    LOOP_LAG_SECONDS: Histogram = Histogram::new(
        "ringfence_loop_lag_seconds",
        "Delay of a timer on the thread that runs Raft, the table and the peers. All of these are delayed as much.",
    );
    LOOP_LAG_LONGEST_SECONDS: Gauge = Gauge::new(
        "ringfence_loop_lag_longest_seconds",
        "Longest lag of the Raft event loop in the last 30 to 60 s.",
    );
    CERTIFICATE_EXPIRES_SECONDS: Gauge = Gauge::new(
        "ringfence_tls_certificate_expires_seconds",
        "When the certificate in use ends, in seconds since the Unix epoch. By use: clients and peers (between nodes) for that of this node, client-authority, peer-authority and redis-authority for the last of those that it trusts.",
    ).by("use", &["clients", "peers", "client-authority", "peer-authority", "redis-authority"]);
    FILES_REFUSED: Gauge = Gauge::new(
        "ringfence_files_refused",
        "1 if files cannot be used as they are now, so that what they contained before is in use. By use: clients, peers and redis (certificates), access (rules).",
    ).by("use", &["clients", "peers", "redis", "access"]);
    DISK_SIZE_BYTES: Gauge = Gauge::new(
        "ringfence_disk_size_bytes",
        "Size of the file system of this node's data.",
    );
    DISK_AVAILABLE_BYTES: Gauge = Gauge::new(
        "ringfence_disk_available_bytes",
        "Free space on that file system. A node whose disk is full stops.",
    );
}

/// Registers the metrics of all crates but those of the mirror, which not every node has. Call it once, after the recorder is installed.
pub(crate) fn start() {
    [
        METRICS,
        ringfence_api::METRICS,
        ringfence_http::METRICS,
        ringfence_raft::METRICS,
        ringfence_resp::METRICS,
        ringfence_service::METRICS,
    ]
    .into_iter()
    .for_each(register);
    BUILD_INFO.of(env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Registers these metrics.
pub(crate) fn register(metrics: &[&dyn Metric]) {
    metrics.iter().for_each(|metric| metric.register());
}
