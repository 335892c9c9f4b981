use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};
use serde::{Deserialize, Serialize};

use crate::rules::{FIRST, VALUES};

mod conditional;
mod subject;

pub use conditional::{Condition, Conditional, KeyChange};
pub use subject::{CommandRight, NamedKeys, Subject};

/// A request to change the table. Apart from the time, it has everything that the decision depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Starts the numbering of a new table: the next change gets the revision after this one. Ignored once anything was
    /// numbered.
    Start {
        /// The revision to start above.
        revision: Revision,
    },
    /// Grants the lease, or puts it into the queues of its keys.
    Acquire(Box<Acquire>),
    /// Extends the lease to its full time-to-live from now.
    Renew {
        /// The lease.
        lease_id: LeaseId,
        /// A new time-to-live; `None` keeps the lease's own.
        ttl: Option<Ttl>,
    },
    /// Ends the lease, or leaves the queue.
    Release {
        /// The lease. An unknown id is remembered as released; one that ended otherwise is refused as gone.
        lease_id: LeaseId,
    },
    /// Ends the lease that holds `key` with `token`, on behalf of an operator.
    Revoke {
        /// A key of the lease.
        key: Key,
        /// Its token.
        token: Token,
    },
    /// Ends the lease, granted or waiting, because the connection of this acquire request closed before the answer; unless
    /// there was another request for it, or a renewal.
    Detach {
        /// The lease.
        lease_id: LeaseId,
        /// The attachment of the request whose connection closed.
        attachment: Attachment,
    },
    /// Changes keys if they are as the requester read them. Since rules 4.
    Conditional(Box<Conditional>),
    /// Ends a lease of a [`Conditional`] whose client does not know it, unless the client has learned of it. Since rules 4.
    TakeBack {
        /// The lease. An unknown id is remembered as abandoned, as its grant may still be on its way.
        lease_id: LeaseId,
        /// The attachment of the request.
        attachment: Attachment,
    },
}

/// The arguments of an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The client's handle.
    pub lease_id: LeaseId,
    /// The keys, none twice, and their modes.
    pub claims: Vec<(Key, Mode)>,
    /// The time-to-live.
    pub ttl: Ttl,
    /// How long to wait in the queue; 0 tries once.
    pub wait: Wait,
    /// Whether to keep the place for 5 s after the wait.
    pub keep_place: bool,
    /// A public label.
    pub holder: Option<Holder>,
    /// Public data of the holder.
    pub metadata: Metadata,
    /// Identifies this request for a later [`Command::Detach`].
    pub attachment: Attachment,
}

/// Tells the acquire requests for one lease apart: a number that the serving node gives to each, from a random start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attachment(pub u64);

impl Command {
    /// The first rules that have this command, with all that it contains. A program that does not support them cannot read it.
    pub fn since(&self) -> u8 {
        match self {
            Self::Start { .. }
            | Self::Acquire(_)
            | Self::Renew { .. }
            | Self::Release { .. }
            | Self::Revoke { .. }
            | Self::Detach { .. } => FIRST,
            Self::Conditional(_) | Self::TakeBack { .. } => VALUES,
        }
    }

    /// About how many bytes the command takes in the log.
    pub fn size_hint(&self) -> usize {
        match self {
            Self::Acquire(acquire) => {
                let keys: usize = acquire.claims.iter().map(|(key, _)| key.as_str().len() + 8).sum();
                let metadata: usize =
                    acquire.metadata.entries().iter().map(|(name, value)| name.len() + value.len() + 4).sum();
                48 + keys + metadata + acquire.holder.as_ref().map_or(0, |holder| holder.as_str().len())
            }
            Self::Revoke { key, .. } => 16 + key.as_str().len(),
            Self::Conditional(conditional) => 16 + conditional.size_hint(),
            Self::Start { .. }
            | Self::Renew { .. }
            | Self::Release { .. }
            | Self::Detach { .. }
            | Self::TakeBack { .. } => 32,
        }
    }
}
