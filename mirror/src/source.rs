use std::future::Future;

use ringfence_wire::{Holder, Key, ModeName, Revision, Token};
use serde::Serialize;
use uuid::Uuid;

/// Where the mirror reads from: the applied table of a node that leads. All of it may be called at any time, and what
/// does not wait must take no longer than a look at so many keys takes.
pub trait Source: Clone + Send + Sync + 'static {
    /// Which cluster this is. It never changes.
    fn identity(&self) -> Identity;

    /// Returns when there are marked keys, or more were marked than are kept.
    fn changed(&self) -> impl Future<Output = ()> + Send;

    /// How many keys are marked.
    fn count_changed(&self) -> usize;

    /// Takes up to `at_most` marked keys, each once, in about the order of their marks.
    fn take_changed(&self, at_most: usize) -> Changed;

    /// The state of these keys, in their order, of one applied table that is at least as new as every mark taken before.
    fn views(&self, keys: &[Key]) -> View;

    /// The next keys after `after` in the order of their bytes, of one applied table; none after the last. All live ones
    /// are among them; others may be.
    fn live(&self, after: Option<&Key>, at_most: usize) -> View;

    /// A revision as new as the cluster's was at some instant of the call, which this node has applied; `None` where it
    /// cannot be had, as when this node leads no longer.
    fn read_index(&self) -> impl Future<Output = Option<Revision>> + Send;
}

/// A cluster, as it is told from others on the same Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The revision that it started at.
    pub first_revision: Revision,
    /// Its id.
    pub cluster_id: Uuid,
}

/// Keys that changed.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// The keys, each once.
    pub keys: Vec<Key>,
    /// More were marked than are kept: any key may have changed.
    pub overflowed: bool,
}

/// Some keys as one applied table has them.
#[derive(Clone, Debug)]
pub struct View {
    /// The table's revision.
    pub revision: Revision,
    /// The keys.
    pub keys: Vec<KeyState>,
}

/// A key as the mirror shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The key.
    pub key: Key,
    /// The lowest token that may still be alive: of a key that nobody holds, the view's revision + 1.
    pub fence: Token,
    /// The newest live token; 0 where nobody holds the key.
    pub token: Token,
    /// How the newest holder holds it.
    pub mode: Option<ModeName>,
    /// The newest holder's label.
    pub holder: Option<Holder>,
}

impl KeyState {
    /// Whether a live lease holds it.
    pub fn is_held(&self) -> bool {
        self.token.0 > 0
    }
}
