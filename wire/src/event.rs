use serde::{Deserialize, Serialize};

use crate::{Key, Mode, Token};

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndReason {
    /// Its holder gave it back, or left the queue.
    Released,
    /// Its time-to-live ran out.
    Expired,
    /// An operator ended it.
    Revoked,
    /// The connection of its request closed before the answer.
    Abandoned,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeName {
    /// It was granted, at once or from the queue.
    Granted,
    /// It took its place in the queue.
    Queued,
    /// It was live and ended.
    Ended,
    /// It waited and left the queue.
    Left,
}

/// A key of a lease that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedKey {
    /// The key.
    pub key: Key,
    /// How it is claimed.
    pub mode: Mode,
    /// Its fence after this change.
    pub fence: Token,
}
