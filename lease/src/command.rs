use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};
use serde::{Deserialize, Serialize};

/// One wish to change the table. Everything that a decision depends on stands in it; the time stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Starts a new table's numbering: the next change gets the revision after this one. Without effect once anything
    /// was numbered.
    Start {
        /// The revision to count on from.
        revision: Revision,
    },
    /// Grant the lease, or give it a place in the queue of each of its keys.
    Acquire(Box<Acquire>),
    /// The full time-to-live again from now.
    Renew {
        /// The lease.
        lease_id: LeaseId,
        /// A new time-to-live; `None` keeps the lease's own.
        ttl: Option<Ttl>,
    },
    /// End the lease, or leave the queue.
    Release {
        /// The lease; an id never seen is remembered as released, and one that ended otherwise is refused as gone.
        lease_id: LeaseId,
    },
    /// An operator ends the lease that holds `key` with `token`.
    Revoke {
        /// A key of the lease.
        key: Key,
        /// Its token.
        token: Token,
    },
    /// The connection of the acquire with this attachment closed before its answer: end the lease, waiting or
    /// granted, unless another acquire stands for it, or ever a renewal came.
    Detach {
        /// The lease.
        lease_id: LeaseId,
        /// The attachment of the acquire whose connection closed.
        attachment: Attachment,
    },
}

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// The keys, none twice, and how each is wanted.
    pub claims: Vec<(Key, Mode)>,
    /// The time-to-live.
    pub ttl: Ttl,
    /// How long to wait in the queue.
    pub wait: Wait,
    /// Whether the place is kept for 5 s beyond the wait.
    pub keep_place: bool,
    /// The public label.
    pub holder: Option<Holder>,
    /// What the holder wishes others to know.
    pub metadata: Metadata,
    /// Which request this is, for a later [`Command::Detach`].
    pub attachment: Attachment,
}

/// Tells the requests for one lease apart: a number that the serving node draws at random for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attachment(pub u64);

impl Command {
    /// About how many bytes it takes in the log.
    pub fn size_hint(&self) -> usize {
        match self {
            Self::Acquire(acquire) => {
                let keys: usize = acquire.claims.iter().map(|(key, _)| key.as_str().len() + 8).sum();
                let metadata: usize =
                    acquire.metadata.entries().iter().map(|(name, value)| name.len() + value.len() + 4).sum();
                48 + keys + metadata + acquire.holder.as_ref().map_or(0, |holder| holder.as_str().len())
            }
            Self::Revoke { key, .. } => 16 + key.as_str().len(),
            Self::Start { .. } | Self::Renew { .. } | Self::Release { .. } | Self::Detach { .. } => 32,
        }
    }
}
