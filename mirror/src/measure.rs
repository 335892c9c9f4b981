//! The metrics of this crate.

use ringfence_metric::{Counter, Gauge, metrics};

use crate::status::{State, Status};

const STATES: &[&str] = &[
    State::Standby.name(),
    State::Published.name(),
    State::Reconciling.name(),
    State::Connecting.name(),
    State::Failing.name(),
    State::Occupied.name(),
];

metrics! {
    pub METRICS;
    PUBLISHED: Counter = Counter::new(
        "ringfence_mirror_published_total",
        "Hashes that this node wrote to Redis.",
    );
    ERRORS: Counter = Counter::new(
        "ringfence_mirror_errors_total",
        "Failed connections to Redis, and writes that Redis refused.",
    );
    REPAIRED: Counter = Counter::new(
        "ringfence_mirror_repaired_total",
        "Malformed hashes in Redis that were replaced.",
    );
    FOREIGN: Counter = Counter::new(
        "ringfence_mirror_foreign_total",
        "Hashes in Redis that no leader can have written, and that were replaced: somebody else writes to the mirror.",
    );
    STATE: Gauge = Gauge::new(
        "ringfence_mirror_state",
        "1 for the state of this node's mirror: standby (it does not lead), published, reconciling, connecting, failing, occupied (another cluster publishes to the same Redis).",
    ).by("state", STATES);
    LAG_KEYS: Gauge = Gauge::new(
        "ringfence_mirror_lag_keys",
        "Changed keys that are not known to be in Redis yet.",
    );
    LAG_SECONDS: Gauge = Gauge::new(
        "ringfence_mirror_lag_seconds",
        "Age of the oldest change that is not known to be in Redis yet.",
    );
}

/// Shows `status` in the gauges.
pub(crate) fn show(status: &Status) {
    LAG_KEYS.get().set(status.lag_keys as f64);
    LAG_SECONDS.get().set(status.lag_ms as f64 / 1_000.0);
    for state in State::ALL {
        STATE.of(state.name()).set(f64::from(u8::from(state == status.state)));
    }
}
