use std::sync::Arc;

use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl};

use crate::keys::Keys;
use crate::owner::SpaceNo;
use crate::requests::{Attempt, Requests};
use crate::{Attachment, Value};

/// A lease that is live or waits. A clone shares its texts and is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    /// Whose it is.
    pub(crate) space: SpaceNo,
    pub(crate) keys: Keys,
    pub(crate) ttl: Ttl,
    pub(crate) holder: Option<Holder>,
    /// The acquire request that it was granted to.
    attachment: Attachment,
    /// Whether that still counts: not after another acquire or a renewal. (An `Option` would add eight bytes to every
    /// lease.)
    attached: bool,
    /// The revision of its grant (its token) or, while it waits, of its place in the queue.
    pub(crate) number: Revision,
    /// The last instant before it may end: by its time-to-live or, while it waits, by its wait.
    pub(crate) deadline_ms: u64,
    /// Boxed because most leases have none of it.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Debug, Default)]
struct Rare {
    metadata: Option<Arc<Metadata>>,
    wait: Option<WaitState>,
    value: Option<Value>,
}

/// What a lease has only while it waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitState {
    pub(crate) since_ms: u64,
    /// On how many of its keys it is not admitted yet.
    pub(crate) blocked: usize,
    pub(crate) requests: Requests,
}

/// Upper bounds in bytes, with the overhead of slots, indexes and the allocator: per lease, per key, per key with a queue, per block of
/// metadata, per entry of it, per wait, and per value. `examples/table_memory.rs` measures them.
const BYTES_OF_LEASE: usize = 160;
const BYTES_OF_KEY: usize = 80;
/// Of a key that has a queue, which one waiter or two holders may have alone.
const BYTES_OF_QUEUE: usize = 640;
const BYTES_OF_METADATA: usize = 768;
const BYTES_OF_ENTRY: usize = 160;
const BYTES_OF_WAIT: usize = 1_024;
const BYTES_OF_VALUE: usize = 160;

impl Lease {
    /// A lease that is neither live nor waiting yet.
    pub(crate) fn new(id: LeaseId, keys: Keys, ttl: Ttl, holder: Option<Holder>, metadata: Metadata) -> Self {
        let metadata = (!metadata.is_empty()).then(|| Arc::new(metadata));
        Self {
            id,
            space: SpaceNo::default(),
            keys,
            ttl,
            holder,
            attachment: Attachment(0),
            attached: false,
            number: Revision(0),
            deadline_ms: 0,
            rare: metadata.map(|metadata| Box::new(Rare { metadata: Some(metadata), ..Rare::default() })),
        }
    }

    pub(crate) fn metadata(&self) -> Option<&Metadata> {
        self.rare.as_ref()?.metadata.as_deref()
    }

    pub(crate) fn value(&self) -> Option<&Value> {
        self.rare.as_ref()?.value.as_ref()
    }

    pub(crate) fn set_value(&mut self, value: Value) {
        self.rare.get_or_insert_default().value = Some(value);
    }

    pub(crate) fn waits(&self) -> bool {
        self.wait().is_some()
    }

    pub(crate) fn wait(&self) -> Option<&WaitState> {
        self.rare.as_ref()?.wait.as_ref()
    }

    pub(crate) fn wait_mut(&mut self) -> Option<&mut WaitState> {
        self.rare.as_mut()?.wait.as_mut()
    }

    /// Starts to wait with this place in the queue, until its deadline.
    pub(crate) fn begin_wait(&mut self, place: Revision, now_ms: u64) {
        self.number = place;
        let request = Attempt { attachment: self.attachment(), until_ms: self.deadline_ms };
        let wait = WaitState { since_ms: now_ms, blocked: 0, requests: Requests::one(request) };
        self.rare.get_or_insert_default().wait = Some(wait);
    }

    /// Adds an acquire request to a waiter.
    pub(crate) fn add_request(&mut self, request: Attempt, now_ms: u64) {
        let Some(wait) = self.wait_mut() else { return };
        wait.requests.add(request, now_ms);
        self.deadline_ms = wait.requests.until_ms().unwrap_or(request.until_ms);
    }

    /// Removes the request with this attachment from a waiter. Returns whether another one keeps the place; a live lease has
    /// none.
    pub(crate) fn remove_request(&mut self, attachment: Attachment, now_ms: u64) -> bool {
        let Some(wait) = self.wait_mut() else { return false };
        wait.requests.remove(attachment);
        let until_ms = wait.requests.until_ms().filter(|until_ms| *until_ms >= now_ms);
        self.deadline_ms = until_ms.unwrap_or(self.deadline_ms);
        until_ms.is_some()
    }

    /// Notes that a waiter is admitted on one more key.
    pub(crate) fn admit(&mut self) {
        if let Some(wait) = self.wait_mut() {
            wait.blocked -= 1;
        }
    }

    /// Whether a waiter is admitted on all its keys.
    pub(crate) fn is_admitted(&self) -> bool {
        self.wait().is_some_and(|wait| wait.blocked == 0)
    }

    /// Becomes live, for its full time-to-live. If several requests wait for the grant, any of them may be answered: then
    /// it is attached to none.
    pub(crate) fn grant(&mut self, token: Revision, now_ms: u64) {
        if let Some(wait) = self.rare.as_mut().and_then(|rare| rare.wait.take()) {
            self.attach(wait.requests.sole(now_ms));
            self.rare.take_if(|rare| rare.metadata.is_none() && rare.value.is_none());
        }
        self.number = token;
        self.deadline_ms = now_ms.saturating_add(self.ttl.ms().into());
    }

    /// Gives a live lease this time-to-live from now on. It is not taken back any more.
    pub(crate) fn expire(&mut self, ttl: Ttl, now_ms: u64) {
        self.ttl = ttl;
        self.deadline_ms = now_ms.saturating_add(ttl.ms().into());
        self.attach(None);
    }

    /// The acquire request that a live lease was granted to; `None` after another acquire or a renewal.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        self.attached.then_some(self.attachment)
    }

    pub(crate) fn attach(&mut self, attachment: Option<Attachment>) {
        self.attached = attachment.is_some();
        self.attachment = attachment.unwrap_or(Attachment(0));
    }

    /// About how many bytes it takes, with its share of the indexes, if it waits or if it does not.
    pub(crate) fn bytes(&self, waits: bool) -> u64 {
        let queue = |mode| match mode {
            _ if waits => BYTES_OF_QUEUE,
            Mode::Shared { .. } => BYTES_OF_QUEUE / 2,
            Mode::Exclusive => 0,
        };
        let key = |(key, mode): &(Key, Mode)| BYTES_OF_KEY + key.as_str().len() + queue(*mode);
        let keys: usize = self.keys.iter().map(key).sum();
        let entry = |(name, value): (&String, &String)| BYTES_OF_ENTRY + name.len() + value.len();
        let entries = |metadata: &Metadata| metadata.entries().iter().map(entry).sum::<usize>();
        let metadata = self.metadata().map_or(0, |metadata| BYTES_OF_METADATA + entries(metadata));
        let holder = self.holder.as_ref().map_or(0, |holder| 32 + holder.as_str().len());
        let waits = if waits { BYTES_OF_WAIT } else { 0 };
        let value = self.value().map_or(0, |value| BYTES_OF_VALUE + value.as_bytes().len());
        (BYTES_OF_LEASE + keys + metadata + holder + waits + value) as u64
    }

    /// The token of a live lease.
    pub(crate) fn token(&self) -> Option<Token> {
        (!self.waits()).then(|| self.number.into())
    }

    /// Its mode on `key`; `None` if that is not one of its keys.
    pub(crate) fn mode_on(&self, key: &Key) -> Option<Mode> {
        self.keys.iter().find(|(own, _)| own == key).map(|&(_, mode)| mode)
    }

    /// Leases end in the order of this.
    pub(crate) fn deadline(&self) -> (u64, Revision) {
        (self.deadline_ms, self.number)
    }

    /// The time until its deadline, in milliseconds.
    pub(crate) fn expires_in_ms(&self, now_ms: u64) -> u64 {
        self.deadline_ms.saturating_sub(now_ms)
    }

    /// Whether its deadline is over.
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
