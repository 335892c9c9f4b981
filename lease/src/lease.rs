use std::sync::Arc;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl};

use crate::Attachment;
use crate::claims::Claims;

/// A lease that is live or waits. A clone has its texts in common with it and costs little.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) claims: Claims,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Option<Holder>,
    /// Behind a pointer because most leases have none.
    pub(crate) metadata: Option<Arc<Metadata>>,
    /// The latest acquire.
    attachment: Attachment,
    /// Whether that still counts: a renewal ends it. (An `Option` would take eight bytes more in every lease.)
    attached: bool,
    /// The revision of its grant (its token) or, while it waits, that of the place it took.
    pub(crate) number: Revision,
    /// The last instant at which it may not yet be ended: of its time-to-live or, while it waits, of its wait.
    pub(crate) deadline_ms: u64,
    /// What only a waiter has.
    pub(crate) wait: Option<Box<WaitState>>,
}

/// What a lease has only while it waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitState {
    /// When it took its place.
    pub(crate) since_ms: u64,
    /// How many of its keys it does not fit yet.
    pub(crate) unfit: usize,
}

impl Lease {
    /// A lease that is neither live nor waits yet.
    pub(crate) fn new(
        id: LeaseId,
        claims: Claims,
        ttl: Ttl,
        holder: Option<Holder>,
        metadata: Metadata,
    ) -> Self {
        Self {
            id,
            claims,
            ttl,
            holder,
            metadata: (!metadata.is_empty()).then(|| Arc::new(metadata)),
            attachment: Attachment(0),
            attached: false,
            number: Revision(0),
            deadline_ms: 0,
            wait: None,
        }
    }

    /// The latest acquire, until a renewal comes.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        self.attached.then_some(self.attachment)
    }

    /// Replaces the attachment.
    pub(crate) fn attach(&mut self, attachment: Option<Attachment>) {
        self.attached = attachment.is_some();
        self.attachment = attachment.unwrap_or(Attachment(0));
    }

    /// The token of a live lease.
    pub(crate) fn token(&self) -> Option<Token> {
        self.wait.is_none().then(|| self.number.into())
    }

    /// How it claims `key`; `None` if it does not.
    pub(crate) fn mode_on(&self, key: &Key) -> Option<Mode> {
        self.claims.iter().find(|(claimed, _)| claimed == key).map(|&(_, mode)| mode)
    }

    /// How long it lives on unless renewed, in milliseconds.
    pub(crate) fn expires_in_ms(&self, now_ms: u64) -> u64 {
        self.deadline_ms.saturating_sub(now_ms)
    }

    /// Whether its time is over.
    pub(crate) fn is_past(&self, now_ms: u64) -> bool {
        now_ms > self.deadline_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_small() {
        assert!(size_of::<Option<Lease>>() <= 88, "{}", size_of::<Option<Lease>>());
    }
}
