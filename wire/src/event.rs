use serde::{Deserialize, Serialize};

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
