use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_lease::{Acquire, Attachment, Command, LeaseTable, Outcome};
use ringfence_mirror::{Changed, Identity, KeyState, Source, View};
use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};
use tokio::sync::Notify;
use uuid::Uuid;

/// A cluster of one node: a real lease table, and its changed keys.
#[derive(Clone)]
pub(crate) struct Table {
    shared: Arc<Shared>,
}

struct Shared {
    identity: Identity,
    /// Whether it leads: otherwise linearizable reads fail.
    leads: bool,
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    table: LeaseTable,
    changed: BTreeSet<Key>,
    /// All applied commands, for `node`.
    log: Vec<Command>,
    /// Changed keys beyond this overflow.
    max_changed: usize,
    overflowed: bool,
}

impl Table {
    pub(crate) fn new(first_revision: u64) -> Self {
        Self::with(first_revision, Uuid::from_u128(u128::from(first_revision)), true, Vec::new())
    }

    /// A node of the same cluster that has applied the same commands so far.
    pub(crate) fn node(&self, leads: bool) -> Self {
        let Identity { first_revision, cluster_id } = self.shared.identity;
        Self::with(first_revision.0, cluster_id, leads, self.lock().log.clone())
    }

    fn with(first_revision: u64, cluster_id: Uuid, leads: bool, log: Vec<Command>) -> Self {
        let mut table = LeaseTable::new();
        table.apply(0, vec![Command::Start { revision: Revision(first_revision) }], &mut Vec::new());
        table.apply(0, log.clone(), &mut Vec::new());
        let inner = Inner { table, changed: BTreeSet::new(), log, max_changed: 100_000, overflowed: false };
        let identity = Identity { first_revision: Revision(first_revision), cluster_id };
        Self {
            shared: Arc::new(Shared { identity, leads, inner: Mutex::new(inner), changed: Notify::new() }),
        }
    }

    /// Limits the changed keys that are kept.
    pub(crate) fn keep_changed(&self, max: usize) {
        self.lock().max_changed = max;
    }

    /// Applies commands, and records the keys that they change.
    pub(crate) fn apply(&self, commands: Vec<Command>) -> Vec<Outcome> {
        let mut inner = self.lock();
        let mut events = Vec::new();
        inner.log.extend(commands.iter().cloned());
        let outcomes = inner.table.apply(0, commands, &mut events);
        for (key, ..) in events.into_iter().flat_map(|event| event.keys) {
            if inner.changed.len() < inner.max_changed {
                inner.changed.insert(key);
            } else {
                inner.overflowed = true;
            }
        }
        drop(inner);
        self.shared.changed.notify_one();
        outcomes
    }

    /// Grants `key` exclusively; `None` if it is held.
    pub(crate) fn grant(&self, key: &Key) -> Option<(LeaseId, Token)> {
        self.grant_as(key, Mode::Exclusive, "a holder")
    }

    /// Grants each of these free keys exclusively.
    pub(crate) fn grant_all(&self, keys: &[Key]) -> Vec<LeaseId> {
        keys.iter().map(|key| self.grant(key).unwrap().0).collect()
    }

    pub(crate) fn grant_as(&self, key: &Key, mode: Mode, holder: &str) -> Option<(LeaseId, Token)> {
        let lease_id = LeaseId::random();
        match self.apply(vec![acquire(lease_id, key, mode, holder)]).pop() {
            Some(Outcome::Granted(grant)) => Some((lease_id, grant.token)),
            _ => None,
        }
    }

    pub(crate) fn release(&self, lease_id: LeaseId) {
        self.apply(vec![Command::Release { lease_id }]);
    }

    pub(crate) fn fence(&self, key: &Key) -> Token {
        self.lock().table.fence(key)
    }

    pub(crate) fn revision(&self) -> Revision {
        self.lock().table.revision()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// The states of all live keys.
    pub(crate) fn all(&self) -> Vec<KeyState> {
        self.live(None, usize::MAX).keys
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap()
    }
}

pub(crate) fn acquire(lease_id: LeaseId, key: &Key, mode: Mode, holder: &str) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id,
        claims: vec![(key.clone(), mode)],
        ttl: Ttl::default(),
        wait: Wait::default(),
        keep_place: false,
        holder: Holder::new(holder),
        metadata: Metadata::default(),
        attachment: Attachment(0),
    }))
}

fn state(table: &LeaseTable, key: &Key) -> KeyState {
    let view = table.key(key, None);
    let newest = view.holders.last();
    KeyState {
        key: key.clone(),
        fence: view.fence,
        token: newest.map_or(Token(0), |holder| holder.token),
        mode: newest.map(|holder| holder.mode),
        holder: newest.and_then(|holder| holder.holder.clone()),
    }
}

impl Source for Table {
    fn identity(&self) -> Identity {
        self.shared.identity
    }

    async fn changed(&self) {
        while self.lock().changed.is_empty() && !self.lock().overflowed {
            self.shared.changed.notified().await;
        }
    }

    fn count_changed(&self) -> usize {
        self.lock().changed.len()
    }

    fn take_changed(&self, at_most: usize) -> Changed {
        let mut inner = self.lock();
        let keys: Vec<Key> = (0..at_most).map_while(|_| inner.changed.pop_first()).collect();
        Changed { keys, overflowed: std::mem::take(&mut inner.overflowed) }
    }

    fn views(&self, keys: &[Key]) -> View {
        let inner = self.lock();
        let keys = keys.iter().map(|key| state(&inner.table, key)).collect();
        View { revision: inner.table.revision(), keys }
    }

    fn live(&self, after: Option<&Key>, at_most: usize) -> View {
        let inner = self.lock();
        let (page, _) = inner.table.keys("", after.map(Key::as_str), at_most, None);
        let held = page.iter().filter(|view| !view.holders.is_empty());
        View {
            revision: inner.table.revision(),
            keys: held.map(|view| state(&inner.table, &view.key)).collect(),
        }
    }

    async fn read_index(&self) -> Option<Revision> {
        self.shared.leads.then(|| self.revision())
    }
}
