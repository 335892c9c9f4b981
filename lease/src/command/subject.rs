use ringfence_wire::{Key, LeaseId, Mode, Token};

use super::{Attachment, Command, Condition, KeyChange};

/// What a command is about.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// Nothing that anybody holds.
    Nothing,
    /// These keys, whoever holds them.
    Keys(NamedKeys<'a>),
    /// A lease, and its keys.
    Lease {
        /// What its owner calls it.
        id: LeaseId,
        /// Whether an unknown id is remembered, so that a late acquire grants nothing.
        is_remembered: bool,
    },
    /// The live lease that holds `key` with `token`, and its keys.
    Holder {
        /// One of its keys.
        key: &'a Key,
        /// Its token.
        token: Token,
    },
}

/// What must be allowed on all keys of the subject of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRight {
    /// To acquire them.
    Acquire,
    /// To end leases of others.
    Revoke,
}

/// The keys that a command names.
#[derive(Clone, Copy, Debug)]
pub struct NamedKeys<'a> {
    claims: &'a [(Key, Mode)],
    conditions: &'a [(Key, Condition)],
    changes: &'a [KeyChange],
}

impl Command {
    /// What it is about.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::Start { .. } => Subject::Nothing,
            Self::Acquire(acquire) => {
                Subject::Keys(NamedKeys { claims: &acquire.claims, conditions: &[], changes: &[] })
            }
            Self::Conditional(both) => Subject::Keys(NamedKeys {
                claims: &[],
                conditions: both.conditions(),
                changes: both.changes(),
            }),
            Self::Renew { lease_id: id, .. } | Self::Detach { lease_id: id, .. } => {
                Subject::Lease { id: *id, is_remembered: false }
            }
            Self::Release { lease_id: id } | Self::TakeBack { lease_id: id, .. } => {
                Subject::Lease { id: *id, is_remembered: true }
            }
            Self::Revoke { key, token } => Subject::Holder { key, token: *token },
        }
    }

    /// What a client must be allowed, to give it. `None`: only nodes give it.
    pub fn right(&self) -> Option<CommandRight> {
        match self {
            Self::Acquire(_) | Self::Renew { .. } | Self::Release { .. } | Self::Conditional(_) => {
                Some(CommandRight::Acquire)
            }
            Self::Revoke { .. } => Some(CommandRight::Revoke),
            Self::Start { .. } | Self::Detach { .. } | Self::TakeBack { .. } => None,
        }
    }

    /// The leases that it may acquire, with their attachments.
    pub fn acquired(&self) -> Vec<(LeaseId, Attachment)> {
        match self {
            Self::Acquire(acquire) => vec![(acquire.lease_id, acquire.attachment)],
            Self::Conditional(both) => both.changes().iter().filter_map(KeyChange::acquired).collect(),
            Self::Renew { .. } | Self::Release { .. } | Self::Revoke { .. } => Vec::new(),
            Self::Start { .. } | Self::Detach { .. } | Self::TakeBack { .. } => Vec::new(),
        }
    }
}

impl<'a> NamedKeys<'a> {
    /// The keys. A conditional may name one several times.
    pub fn iter(self) -> impl Iterator<Item = &'a Key> {
        let claims = self.claims.iter().map(|(key, _)| key);
        let conditions = self.conditions.iter().map(|(key, _)| key);
        claims.chain(conditions).chain(self.changes.iter().map(KeyChange::key))
    }
}
