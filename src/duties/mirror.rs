//! The mirror duty: while this node leads, the fences of its table are published in Redis.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_lease::Fence;
use ringfence_mirror::{Changed, Elder, Identity, KeyState, Mirror, Source, View};
use ringfence_mutant::{Mutant, is};
use ringfence_raft::{Changes, Elders, Handle, Mirrored};
use ringfence_wire::{Key, Revision, Token};

/// Publishes whenever this node leads, until it stops.
pub(crate) async fn run(handle: Handle, mirror: Mirror) {
    let mut leads = handle.leads();
    loop {
        let is_leading = leads.borrow_and_update().is_some();
        let changed = async { leads.changed().await.is_ok() };
        let goes_on = if is_leading {
            // Keys are marked before the first comparison reads the table: no change falls between.
            let table = Table { changes: Arc::new(handle.changes()), handle: handle.clone() };
            tokio::select! {
                never = mirror.publish(table) => match never {},
                goes_on = changed => goes_on,
            }
        } else {
            changed.await
        };
        if !goes_on {
            return;
        }
    }
}

/// A mirror as the replicated table knows it: by it a node tells the others whether a grant stands there.
pub(crate) struct Told(pub(crate) Mirror);

impl Mirrored for Told {
    fn stands<'a>(
        &'a self,
        keys: &'a [Key],
        revision: Revision,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(self.0.stands(keys, revision))
    }
}

/// A mirror as a new cluster knows it: what it finds there of an earlier one.
pub(crate) struct Found(pub(crate) Mirror);

impl Elders for Found {
    fn objection(
        &self,
        first_revision: Revision,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async move {
            let Elder { address, cluster, reached } =
                self.0.elder().await.filter(|elder| elder.reached >= first_revision)?;
            Some(format!(
                "it would count from {first_revision}, and cluster {cluster}, whose marker stands in the Redis at \
                 {address}, came to {reached}: guards that know its tokens would reject those of this one. Start all \
                 nodes with a --first-revision well above that, and with another --mirror-prefix if that cluster still \
                 runs; or, if nothing that it guarded is there any more, run `ringfence mirror purge --cluster {cluster}`"
            ))
        })
    }
}

/// The table of a node that leads.
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
        let view = self.handle.view(|table| View {
            revision: table.revision(),
            keys: keys.iter().map(|key| state(table.fence_on(key))).collect(),
        });
        if is(Mutant::MirrorsLaterFences) {
            static EARLIER: AtomicU64 = AtomicU64::new(0);
            let earlier = Revision(EARLIER.swap(view.revision.0, Ordering::Relaxed));
            return View { revision: earlier, ..view };
        }
        view
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
