use std::future::Future;

use ringfence_wire::{Holder, Key, ModeName, Revision, Token};
use serde::Serialize;
use uuid::Uuid;

/// What the mirror reads: the applied table of the leader. Any method may be called at any time; those that are not async
/// must take no longer than looking up as many keys.
pub trait Source: Clone + Send + Sync + 'static {
    /// The cluster's identity. It never changes.
    fn identity(&self) -> Identity;

    /// Returns when keys have changed, or more than are kept.
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// The number of changed keys not taken yet.
    fn count_changed(&self) -> usize;

    /// Takes up to `at_most` changed keys, each once, in about the order of their changes.
    fn take_changed(&self, at_most: usize) -> Changed;

    /// The states of these keys, in their order, from one applied table that is at least as new as every change taken
    /// before.
    fn views(&self, keys: &[Key]) -> View;

    /// The next keys after `after` in byte order, from one applied table; none after the last. They include all live
    /// keys, and may include others.
    fn live(&self, after: Option<&Key>, at_most: usize) -> View;

    /// A revision that this node has applied, as new as the cluster's at some instant of the call. `None` if that is
    /// unavailable, as when this node no longer leads.
    fn read_index(&self) -> impl Future<Output = Option<Revision>> + Send;
}

/// The identity of a cluster among others on the same Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The revision at which it started.
    pub first_revision: Revision,
    /// Its id.
    pub cluster_id: Uuid,
}

/// Keys that changed.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// The keys, each once.
    pub keys: Vec<Key>,
    /// More changed than are kept: any key may have changed.
    pub overflowed: bool,
}

/// Some keys from one applied table.
#[derive(Clone, Debug)]
pub struct View {
    /// The table's revision.
    pub revision: Revision,
    /// The keys.
    pub keys: Vec<KeyState>,
}

/// The state of a key, as the mirror shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The key.
    pub key: Key,
    /// The lowest token that may still be alive: of a free key, the view's revision + 1.
    pub fence: Token,
    /// The newest live token; 0 if the key is free.
    pub token: Token,
    /// The mode of the newest holder.
    pub mode: Option<ModeName>,
    /// The label of the newest holder.
    pub holder: Option<Holder>,
}

impl KeyState {
    /// Whether a live lease holds it.
    pub fn is_held(&self) -> bool {
        self.token.0 > 0
    }
}
