use serde::Serialize;

use crate::Identity;

/// The state of the mirror, as `GET /v1/cluster` of the leader shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The worst state among the masters.
    pub state: State,
    /// The number of changed keys not known to be in Redis yet.
    pub lag_keys: usize,
    /// The time since the oldest of these changes, in milliseconds.
    pub lag_ms: u64,
    /// Each master. Empty if this node does not publish, or has found none.
    pub masters: Vec<MasterStatus>,
    /// The last error, until all is published again.
    pub last_error: Option<String>,
}

/// The state of one master.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MasterStatus {
    /// Host and port.
    pub address: String,
    /// Its state.
    pub state: State,
    /// As in [`Status`].
    pub lag_keys: usize,
    /// As in [`Status`].
    pub lag_ms: u64,
    /// The other cluster that owns this Redis.
    pub left_to: Option<Identity>,
    /// The last error of this master, until all is published there again.
    pub last_error: Option<String>,
}

/// The state of a master. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// This node does not publish: it does not lead.
    Standby,
    /// Redis has what the table has, except for the latest changes.
    Published,
    /// Table and Redis are being compared. Changes are published meanwhile.
    Reconciling,
    /// The first connection is being made.
    Connecting,
    /// Redis is unreachable or refuses writes. Retried until it works.
    Failing,
    /// Another cluster publishes here: this one does not.
    Occupied,
}

impl State {
    pub(crate) const ALL: [Self; 6] =
        [Self::Standby, Self::Published, Self::Reconciling, Self::Connecting, Self::Failing, Self::Occupied];

    pub(crate) const fn name(self) -> &'static str {
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

impl Status {
    /// The status of a node that does not publish.
    pub(crate) fn standby() -> Self {
        Self { state: State::Standby, lag_keys: 0, lag_ms: 0, masters: Vec::new(), last_error: None }
    }
}
