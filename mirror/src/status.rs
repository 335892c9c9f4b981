use serde::Serialize;

use crate::Identity;

/// How the mirror is, as `GET /v1/cluster` tells it of the leader.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The worst state among the masters.
    pub state: State,
    /// How many keys have changed and are not known to stand in Redis yet.
    pub lag_keys: usize,
    /// How long ago the oldest of them changed, in milliseconds.
    pub lag_ms: u64,
    /// Each master; none while this node does not publish, or has found none.
    pub masters: Vec<MasterStatus>,
    /// What went wrong last, if anything did since this node began to publish.
    pub last_error: Option<String>,
}

/// How one master is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MasterStatus {
    /// Where it is.
    pub address: String,
    /// Its state.
    pub state: State,
    /// As in [`Status`].
    pub lag_keys: usize,
    /// As in [`Status`].
    pub lag_ms: u64,
    /// The cluster that this Redis is left to.
    pub left_to: Option<Identity>,
    /// What went wrong here last.
    pub last_error: Option<String>,
}

/// What is going on. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// This node does not publish: it does not lead.
    Standby,
    /// Redis has what the table has, but for what changed just now.
    Published,
    /// Table and Redis are being compared, and changes published.
    Reconciling,
    /// Redis is being connected to.
    Connecting,
    /// Redis cannot be reached, or refuses what is written. It is tried again and again.
    Failing,
    /// Another cluster publishes here: this one does not.
    Occupied,
}

impl State {
    /// All there are.
    pub(crate) const ALL: [Self; 6] =
        [Self::Standby, Self::Published, Self::Reconciling, Self::Connecting, Self::Failing, Self::Occupied];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Published => "published",
            Self::Reconciling => "reconciling",
            Self::Connecting => "connecting",
            Self::Failing => "failing",
            Self::Occupied => "occupied",
        }
    }
}

/// Shows what is measured from the start: a rate sees no first count of what was not there before.
pub(crate) fn begin() {
    Status::standby().measure();
    for name in [
        "ringfence_mirror_published_total",
        "ringfence_mirror_errors_total",
        "ringfence_mirror_repaired_total",
        "ringfence_mirror_foreign_total",
    ] {
        metrics::counter!(name).increment(0);
    }
}

impl Status {
    /// That of a node that does not publish.
    pub(crate) fn standby() -> Self {
        Self { state: State::Standby, lag_keys: 0, lag_ms: 0, masters: Vec::new(), last_error: None }
    }

    /// Sets the gauges.
    pub(crate) fn measure(&self) {
        metrics::gauge!("ringfence_mirror_lag_keys").set(self.lag_keys as f64);
        metrics::gauge!("ringfence_mirror_lag_seconds").set(self.lag_ms as f64 / 1_000.0);
        for state in State::ALL {
            let is_this = f64::from(u8::from(state == self.state));
            metrics::gauge!("ringfence_mirror_state", "state" => state.name()).set(is_this);
        }
    }
}
