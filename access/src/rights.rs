use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// What may be done with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRight {
    /// To check tokens.
    Validate,
    /// To see holders, waiters and changes, and all that `validate` allows.
    Read,
    /// All that a holder needs: to acquire leases, and to see, renew and release them.
    Acquire,
    /// To end leases of others.
    Revoke,
}

/// What may be done with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterRight {
    /// To read metrics.
    Metrics,
    /// To see the state of the cluster.
    Observe,
    /// To change the members, to make backups, and all that `observe` allows.
    Operate,
}

impl KeyRight {
    /// All rights.
    pub const ALL: [Self; 4] = [Self::Validate, Self::Read, Self::Acquire, Self::Revoke];

    /// Whether who has this right has `other`.
    pub(crate) fn includes(self, other: Self) -> bool {
        self == other || (self, other) == (Self::Read, Self::Validate)
    }
}

impl ClusterRight {
    /// All rights.
    pub const ALL: [Self; 3] = [Self::Metrics, Self::Observe, Self::Operate];

    /// Whether who has this right has `other`.
    pub(crate) fn includes(self, other: Self) -> bool {
        self == other || (self, other) == (Self::Operate, Self::Observe)
    }
}

impl Display for KeyRight {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Display for ClusterRight {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
