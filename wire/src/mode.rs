use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// How a lease holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared holders: at most `limit` in all (a semaphore), or any number (a read lock). If limits
    /// differ on one key, the smallest counts.
    Shared {
        /// The largest number of holders, this one included.
        limit: Option<NonZeroU32>,
    },
}

/// A [`Mode`] in JSON, where its `limit` is a field of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeName {
    /// `exclusive`, the default.
    #[default]
    Exclusive,
    /// `shared`.
    Shared,
}

impl Mode {
    /// Its name in JSON.
    pub fn name(self) -> ModeName {
        match self {
            Self::Exclusive => ModeName::Exclusive,
            Self::Shared { .. } => ModeName::Shared,
        }
    }

    /// The largest number of holders, this one included; `None` for no limit, and for an exclusive one.
    pub fn limit(self) -> Option<NonZeroU32> {
        match self {
            Self::Exclusive => None,
            Self::Shared { limit } => limit,
        }
    }
}
