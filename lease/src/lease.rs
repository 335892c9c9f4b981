use std::sync::Arc;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl};

use crate::Attachment;
use crate::claims::Claims;
use crate::puts::{Put, Puts};

/// A lease that is live or waits. A clone has its texts in common with it and costs little.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) claims: Claims,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Option<Holder>,
    /// The acquire that it was granted to.
    attachment: Attachment,
    /// Whether that still counts: once another acquire or a renewal came, it never does again. (An `Option` would take eight
    /// bytes more in every lease.)
    attached: bool,
    /// The revision of its grant (its token) or, while it waits, that of the place it took.
    pub(crate) number: Revision,
    /// The last instant at which it may not yet be ended: of its time-to-live or, while it waits, of its wait.
    pub(crate) deadline_ms: u64,
    /// Behind one pointer because most leases have none of it.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Debug, Default)]
struct Rare {
    metadata: Option<Arc<Metadata>>,
    wait: Option<WaitState>,
}

/// What a lease has only while it waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitState {
    /// When it took its place.
    pub(crate) since_ms: u64,
    /// How many of its keys it does not fit yet.
    pub(crate) unfit: usize,
    pub(crate) puts: Puts,
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
            attachment: Attachment(0),
            attached: false,
            number: Revision(0),
            deadline_ms: 0,
            rare: (!metadata.is_empty())
                .then(|| Box::new(Rare { metadata: Some(Arc::new(metadata)), wait: None })),
        }
    }

    /// What its holder wishes others to know.
    pub(crate) fn metadata(&self) -> Option<&Metadata> {
        self.rare.as_ref()?.metadata.as_deref()
    }

    /// Whether it waits.
    pub(crate) fn waits(&self) -> bool {
        self.wait().is_some()
    }

    /// What only a waiter has.
    pub(crate) fn wait(&self) -> Option<&WaitState> {
        self.rare.as_ref()?.wait.as_ref()
    }

    pub(crate) fn wait_mut(&mut self) -> Option<&mut WaitState> {
        self.rare.as_mut()?.wait.as_mut()
    }

    /// It waits from then on, and until its grant. Its deadline is the end of its wait.
    pub(crate) fn begin_wait(&mut self, since_ms: u64) {
        let puts = Puts::one(Put { attachment: self.attachment(), until_ms: self.deadline_ms });
        self.rare.get_or_insert_default().wait = Some(WaitState { since_ms, unfit: 0, puts });
    }

    /// One more acquire stands for a waiter.
    pub(crate) fn add_put(&mut self, put: Put, now_ms: u64) {
        let Some(wait) = self.wait_mut() else { return };
        wait.puts.add(put, now_ms);
        self.deadline_ms = wait.puts.until_ms().unwrap_or(put.until_ms);
    }

    /// The acquire with this attachment stands no more for a waiter. Tells whether another does.
    pub(crate) fn remove_put(&mut self, attachment: Attachment, now_ms: u64) -> bool {
        let Some(wait) = self.wait_mut() else { return false };
        wait.puts.remove(attachment);
        let Some(until_ms) = wait.puts.until_ms().filter(|until_ms| *until_ms >= now_ms) else {
            return false;
        };
        self.deadline_ms = until_ms;
        true
    }

    /// It is granted. Where several acquires stand for it, one of them may be answered: then none takes it back.
    pub(crate) fn end_wait(&mut self, now_ms: u64) {
        let sole = self.wait().and_then(|wait| wait.puts.sole(now_ms));
        self.attach(sole);
        let metadata = self.rare.take().and_then(|rare| rare.metadata);
        self.rare = metadata.map(|metadata| Box::new(Rare { metadata: Some(metadata), wait: None }));
    }

    /// The acquire that a live lease was granted to; none once another, or a renewal, came.
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
        (!self.waits()).then(|| self.number.into())
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
        assert!(size_of::<Option<Lease>>() <= 80, "{}", size_of::<Option<Lease>>());
    }
}
