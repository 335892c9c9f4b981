//! Publishes the table's fences in Redis while this node leads.

use std::pin::Pin;
use std::sync::Arc;

use ringfence_lease::Fence;
use ringfence_mirror::{Changed, Identity, KeyState, Mirror, Source, View};
use ringfence_raft::{Changes, Handle, MirrorView};
use ringfence_wire::{Key, Revision, Token};

/// Publishes whenever this node leads, until it stops.
pub(crate) async fn run(handle: Handle, mirror: Mirror) {
    let mut leads = handle.leads();
    loop {
        let is_leading = leads.borrow_and_update().is_some();
        let changed = async { leads.changed().await.is_ok() };
        let continues = if is_leading {
            // Changes are recorded before the first comparison reads the table, so none is missed.
            let table = Table { changes: Arc::new(handle.changes()), handle: handle.clone() };
            tokio::select! {
                never = mirror.publish(table) => match never {},
                continues = changed => continues,
            }
        } else {
            changed.await
        };
        if !continues {
            return;
        }
    }
}

/// Tells the other nodes whether a grant is in the mirror.
pub(crate) struct Published(pub(crate) Mirror);

impl MirrorView for Published {
    fn has<'a>(
        &'a self,
        keys: &'a [Key],
        revision: Revision,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(self.0.wait_published(keys, revision))
    }
}

/// The table of the leader.
#[derive(Clone)]
struct Table {
    handle: Handle,
    changes: Arc<Changes>,
}

impl Source for Table {
    fn identity(&self) -> Identity {
        Identity {
            first_revision: self.handle.view(|table| table.first_revision()),
            cluster_id: self.handle.cluster_id(),
        }
    }

    async fn changed(&self) {
        self.changes.any().await;
    }

    fn count_changed(&self) -> usize {
        self.changes.count()
    }

    fn take_changed(&self, at_most: usize) -> Changed {
        let taken = self.changes.take(at_most);
        Changed { keys: taken.keys, overflowed: taken.overflowed }
    }

    fn views(&self, keys: &[Key]) -> View {
        self.handle.view(|table| View {
            revision: table.revision(),
            keys: keys.iter().map(|key| state(table.fence_on(key))).collect(),
        })
    }

    fn live(&self, after: Option<&Key>, at_most: usize) -> View {
        self.handle.view(|table| View {
            revision: table.revision(),
            keys: table.fences(after.map(Key::as_str), at_most).into_iter().map(state).collect(),
        })
    }

    async fn read_index(&self) -> Option<Revision> {
        self.handle.linearize().await.ok()?;
        Some(self.handle.view(|table| table.revision()))
    }
}

fn state(fence: Fence) -> KeyState {
    let Fence { key, fence, newest } = fence;
    let (token, mode, holder) = match newest {
        Some((token, mode, holder)) => (token, Some(mode.name()), holder),
        None => (Token(0), None, None),
    };
    KeyState { key, fence, token, mode, holder }
}
