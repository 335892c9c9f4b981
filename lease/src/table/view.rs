use ringfence_wire::{
    Grant, GrantState, GrantedKey, Holder, HolderView, Key, KeyView, LeaseId, Mode, PrincipalName, Token,
    WaiterView, Waiting, WaitingState,
};

use super::LeaseTable;
use crate::lease::Lease;
use crate::limits::{MAX_AHEAD, MAX_SHOWN};
use crate::steps::step;
use crate::store::{Lock, Slot};
use crate::{Command, Refusal, Subject};

/// A lease that has not ended, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It is live.
    Granted(Grant),
    /// It waits in the queues of its keys.
    Waiting(Waiting),
}

/// Reads. A linearizable read passes the leader's clock as `now_ms`, in milliseconds of cluster time. A local read passes
/// `None`, and cannot tell the time left. A lease whose deadline is over stays live until an entry of the log ends it.
///
/// Ids of leases are read for `by`, the principal whose they are, or for nobody.
impl LeaseTable {
    /// The lease as its owner sees it, or [`Refusal::WaitTimeout`], [`Refusal::Gone`] or [`Refusal::Unknown`].
    pub fn lease(
        &self,
        by: Option<&PrincipalName>,
        id: LeaseId,
        now_ms: Option<u64>,
    ) -> Result<LeaseState, Refusal> {
        let (_, lease) = self.store.active(by, id).ok_or_else(|| self.refusal(by, id))?;
        Ok(if lease.waits() {
            LeaseState::Waiting(Self::waiting_of(lease, self.ahead_of(lease)))
        } else {
            LeaseState::Granted(self.grant_of(lease, self.clock(now_ms)))
        })
    }

    /// Whether the lease waits in the queues of its keys.
    pub fn is_waiting(&self, by: Option<&PrincipalName>, id: LeaseId) -> bool {
        self.store.active(by, id).is_some_and(|(_, lease)| lease.waits())
    }

    /// The keys of a lease that is live or waits.
    pub fn keys_of_lease(
        &self,
        by: Option<&PrincipalName>,
        id: LeaseId,
    ) -> Option<impl Iterator<Item = &Key> + use<'_>> {
        self.store.active(by, id).map(|(_, lease)| lease.keys.iter().map(|(key, _)| key))
    }

    /// The keys of the live lease that holds `key` with this token.
    pub fn keys_of_holder(&self, key: &Key, token: Token) -> Option<impl Iterator<Item = &Key>> {
        let slot = self.store.lock(key)?.holder(token)?;
        Some(self.store.get(slot).keys.iter().map(|(key, _)| key))
    }

    /// The principal that acquired the live lease that holds `key` with this token.
    pub fn principal_of_holder(&self, key: &Key, token: Token) -> Option<&PrincipalName> {
        let slot = self.store.lock(key)?.holder(token)?;
        self.store.owner(self.store.get(slot))
    }

    /// How many keys `command` of `by` would touch now, each as often as it is named. 0 for a lease that is neither live nor waiting.
    pub fn key_count(&self, by: Option<&PrincipalName>, command: &Command) -> usize {
        let keys = |slot: Option<Slot>| slot.map_or(0, |slot| self.store.get(slot).keys.len());
        match command.subject() {
            Subject::Nothing => 0,
            Subject::Keys(named) => named.iter().count(),
            Subject::Lease { id, .. } => keys(self.store.active(by, id).map(|(slot, _)| slot)),
            Subject::Holder { key, token } => keys(self.store.lock(key).and_then(|lock| lock.holder(token))),
        }
    }

    /// The public view of `key`: its first holders and waiters, and how many more there are.
    pub fn key(&self, key: &Key, now_ms: Option<u64>) -> KeyView {
        self.key_view(key, self.store.lock(key), now_ms)
    }

    /// The lowest token that may still be live on `key`: that of its oldest holder or, if nobody holds it, the token that
    /// the next grant would have. It never decreases.
    pub fn fence(&self, key: &Key) -> Token {
        let oldest = self.store.lock(key).and_then(|lock| lock.holders().next());
        oldest.map_or_else(|| self.next_token(), |holder| holder.number.into())
    }

    /// Whether a live lease holds `key` with this token.
    pub fn is_live(&self, key: &Key, token: Token) -> bool {
        self.store.lock(key).and_then(|lock| lock.holder(token)).is_some()
    }

    /// The fence of a key of a live lease. On an exclusive key that is its own token: no look at the key is needed.
    pub(super) fn fence_of(&self, lease: &Lease, key: &Key, mode: Mode) -> Token {
        match mode {
            Mode::Exclusive => lease.number.into(),
            Mode::Shared { .. } => self.fence(key),
        }
    }

    /// The live leases on `key` by token, and their modes.
    pub(super) fn holders(&self, key: &Key) -> impl Iterator<Item = (&Lease, Mode)> {
        let entries = self.store.lock(key).into_iter().flat_map(Lock::holders);
        entries.map(|entry| (self.store.get(entry.slot), entry.mode))
    }

    /// How many waiters are ahead in the longest of a waiter's queues, counted up to [`MAX_AHEAD`].
    pub(super) fn ahead_of(&self, waiter: &Lease) -> usize {
        let ahead = |key| self.store.lock(key).map_or(0, |lock| lock.waiters_ahead(waiter.number, MAX_AHEAD));
        waiter.keys.iter().map(|(key, _)| ahead(key)).max().unwrap_or(0)
    }

    pub(super) fn waiting_of(waiter: &Lease, ahead: usize) -> Waiting {
        Waiting { lease_id: waiter.id, state: WaitingState::Waiting, ahead: ahead.min(MAX_AHEAD) as u64 }
    }

    pub(super) fn grant_of(&self, lease: &Lease, now_ms: Option<u64>) -> Grant {
        let granted_key = |(key, mode): &(Key, Mode)| GrantedKey {
            key: key.clone(),
            mode: mode.name(),
            limit: mode.limit(),
            fence: self.fence_of(lease, key, *mode),
        };
        Grant {
            lease_id: lease.id,
            state: GrantState::Granted,
            token: lease.number.into(),
            holder: lease.holder.clone(),
            ttl_ms: lease.ttl.ms(),
            expires_in_ms: now_ms.map(|now_ms| lease.expires_in_ms(now_ms)),
            keys: lease.keys.iter().map(granted_key).collect(),
        }
    }

    pub(super) fn key_view(&self, key: &Key, lock: Option<Lock<'_>>, now_ms: Option<u64>) -> KeyView {
        let clock = self.clock(now_ms);
        let (holders_len, waiters_len) = lock.map_or((0, 0), |lock| (lock.holders_len(), lock.waiters_len()));
        let holder = |(lease, mode): (&Lease, Mode)| HolderView {
            token: lease.number.into(),
            holder: lease.holder.clone(),
            mode: mode.name(),
            limit: mode.limit(),
            ttl_ms: lease.ttl.ms(),
            expires_in_ms: clock.map(|now_ms| lease.expires_in_ms(now_ms)),
            metadata: lease.metadata().cloned().unwrap_or_default(),
            by: self.store.owner(lease).cloned(),
            other_keys: Vec::new(),
            more_keys: 0,
        };
        let waiters = lock.into_iter().flat_map(Lock::waiters).take(MAX_SHOWN).map(|entry| {
            step();
            let lease = self.store.get(entry.slot);
            let since_ms = lease.wait().map_or(self.at_ms, |wait| wait.since_ms);
            WaiterView {
                holder: lease.holder.clone(),
                mode: entry.mode.name(),
                waited_ms: clock.unwrap_or(self.at_ms).saturating_sub(since_ms),
                by: self.store.owner(lease).cloned(),
            }
        });
        KeyView {
            key: key.clone(),
            fence: self.fence(key),
            revision: self.revision,
            holders: self.holders(key).take(MAX_SHOWN).inspect(|_| step()).map(holder).collect(),
            more_holders: holders_len.saturating_sub(MAX_SHOWN) as u64,
            waiters: waiters.collect(),
            more_waiters: waiters_len.saturating_sub(MAX_SHOWN) as u64,
        }
    }

    /// The clock of a read, which is never behind the applied entries.
    fn clock(&self, now_ms: Option<u64>) -> Option<u64> {
        now_ms.map(|now_ms| now_ms.max(self.at_ms))
    }
}

/// About how many bytes of JSON the view takes.
pub(super) fn about_bytes_of(view: &KeyView) -> usize {
    let label = |holder: &Option<Holder>| holder.as_ref().map_or(0, |holder| json_bytes_of(holder.as_str()));
    let metadata = |holder: &HolderView| -> usize {
        let entries = holder.metadata.entries().iter();
        entries.map(|(name, value)| json_bytes_of(name) + json_bytes_of(value) + 6).sum()
    };
    let by = |by: &Option<PrincipalName>| by.as_ref().map_or(0, |by| 8 + by.as_str().len());
    let holders = view.holders.iter();
    let holders = holders.map(|holder| 140 + label(&holder.holder) + metadata(holder) + by(&holder.by));
    let waiters = view.waiters.iter().map(|waiter| 60 + label(&waiter.holder) + by(&waiter.by));
    120 + json_bytes_of(view.key.as_str()) + holders.chain(waiters).sum::<usize>()
}

/// The bytes of a text in JSON, where each control character takes six.
fn json_bytes_of(text: &str) -> usize {
    let bytes_of = |byte| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(bytes_of).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroU32;

    use ringfence_wire::Metadata;

    use super::*;
    use crate::Acquire;
    use crate::laws::make;
    use crate::limits::PAGE_BYTES;

    fn acquire(n: usize, key: &str, wait_ms: u32, metadata: &Metadata) -> Command {
        let limit = if wait_ms == 0 { None } else { NonZeroU32::new(1) };
        let keys = [(make::key(key), Mode::Shared { limit })];
        Acquire { metadata: metadata.clone(), ..make::acquire(n as u128 + 1, keys, wait_ms) }.into()
    }

    fn largest_metadata() -> Metadata {
        Metadata::new(BTreeMap::from([("m".to_owned(), "x".repeat(4_000))])).unwrap()
    }

    /// Showing all of 10,000 with their metadata took 40 MB for a client that did not read them.
    #[test]
    fn a_view_shows_the_first_holders_and_waiters_and_counts_the_rest() {
        let mut table = LeaseTable::new();
        let (metadata, many) = (largest_metadata(), 3 * MAX_SHOWN);
        let holders = (0..many).map(|id| acquire(id, "a", 0, &metadata));
        let waiters = (many..2 * many + 1).map(|id| acquire(id, "a", 60_000, &metadata));
        table.apply(0, holders.chain(waiters).collect(), &mut Vec::new());
        let view = table.key(&Key::new("a").unwrap(), None);
        assert_eq!((view.holders.len(), view.more_holders), (MAX_SHOWN, 2 * MAX_SHOWN as u64));
        assert_eq!((view.waiters.len(), view.more_waiters), (MAX_SHOWN, 2 * MAX_SHOWN as u64 + 1));
        assert!(view.holders.iter().map(|holder| holder.token.0).eq(1..=MAX_SHOWN as u64));
        assert_eq!(table.keys("", None, 9, None), (vec![view], None));
    }

    #[test]
    fn a_page_ends_early_where_its_views_are_large() {
        for text in ["x", "\u{1}", "\""] {
            read_pages_of(&Metadata::new(BTreeMap::from([("m".to_owned(), text.repeat(4_000))])).unwrap());
        }
    }

    fn read_pages_of(metadata: &Metadata) {
        let mut table = LeaseTable::new();
        let key = |n: usize| format!("k{n:04}");
        table.apply(0, (0..1_000).map(|n| acquire(n, &key(n), 0, metadata)).collect(), &mut Vec::new());
        let (mut seen, mut after) = (0, None);
        loop {
            let (page, next) = table.keys("", after.as_ref().map(Key::as_str), 1_000, None);
            let bytes = serde_json::to_vec(&page).unwrap().len();
            assert!(bytes < PAGE_BYTES + 30_000, "{bytes}");
            assert!(
                page.iter().map(|view| view.key.as_str().to_owned()).eq((seen..seen + page.len()).map(key))
            );
            seen += page.len();
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, 1_000);
    }
}
