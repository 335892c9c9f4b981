//! Metrics of the server.

use metrics::{Counter, counter};

/// Why a connection was closed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CloseReason {
    /// There was no room for a new one.
    Evicted,
    /// It was idle for too long.
    Silent,
    /// A request head did not arrive in time.
    Late,
    /// A response was not read for too long, or others needed its memory.
    Unread,
}

const CLOSE_REASONS: [CloseReason; 4] =
    [CloseReason::Evicted, CloseReason::Silent, CloseReason::Late, CloseReason::Unread];

/// Registers all counters with 0: a rate misses the first count of a metric that did not exist before.
pub fn register() {
    drop(handshakes_failed_total());
    CLOSE_REASONS.iter().for_each(|reason| drop(connections_closed_total(*reason)));
}

/// Connections that the server closed.
pub(crate) fn connections_closed_total(reason: CloseReason) -> Counter {
    let reason = match reason {
        CloseReason::Evicted => "evicted",
        CloseReason::Silent => "silent",
        CloseReason::Late => "late",
        CloseReason::Unread => "unread",
    };
    counter!("ringfence_http_connections_closed_total", "reason" => reason)
}

/// TLS handshakes with clients that failed.
pub(crate) fn handshakes_failed_total() -> Counter {
    counter!("ringfence_tls_handshakes_failed_total")
}
