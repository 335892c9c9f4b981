//! Metrics of the server.

use ringfence_metric::{Counter, Gauge, metrics};

/// Why a connection was closed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CloseReason {
    /// There was no room for a new one.
    Evicted,
    /// It was idle for too long.
    Silent,
    /// A request did not arrive in time: its head or, if it is not of HTTP, all of it. Or others needed its memory.
    Late,
    /// A response was not read for too long, or others needed its memory.
    Unread,
}

impl CloseReason {
    const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Silent => "silent",
            Self::Late => "late",
            Self::Unread => "unread",
        }
    }
}

const CLOSE_REASONS: &[&str] = &[
    CloseReason::Evicted.name(),
    CloseReason::Silent.name(),
    CloseReason::Late.name(),
    CloseReason::Unread.name(),
];

metrics! {
    pub METRICS;
    CONNECTIONS_CLOSED: Counter = Counter::new(
        "ringfence_http_connections_closed_total",
        "Connections that this node closed, by reason: evicted (no room for a new one), silent, late (slow request), unread (response not read).",
    ).by("reason", CLOSE_REASONS);
    CONNECTIONS: Gauge = Gauge::new("ringfence_http_connections", "Open client connections.");
    CONNECTIONS_MOST: Gauge = Gauge::new(
        "ringfence_http_connections_most",
        "Maximum number of client connections.",
    );
    HANDSHAKES_FAILED: Counter = Counter::new(
        "ringfence_tls_handshakes_failed_total",
        "TLS handshakes with clients that failed, and plain connections that were refused.",
    );
}

/// Counts a connection that the server closed.
pub(crate) fn connection_closed(reason: CloseReason) {
    CONNECTIONS_CLOSED.of(reason.name()).increment(1);
}
