//! The connection that comes after one that is [stale](Link::is_stale).
//!
//! It is made beside the old one, which goes on meanwhile: to connect may take seconds, and the other side may refuse what this node shows
//! now. But a connection to what this node no longer trusts ends at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep};

use super::directory::{Directory, Target};
use super::link::Link;

/// Pause before each attempt. What makes connections stale is not in this node's hands alone, and after a refusal the next is likely.
const PAUSE: Duration = Duration::from_secs(1);

/// How often a connection is checked, whatever happens on it.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Successor {
    /// At most one attempt. It ends when this is dropped.
    connecting: JoinSet<io::Result<Link>>,
    made: Option<Link>,
    looks: Interval,
}

impl Successor {
    /// None yet.
    pub(super) fn new() -> Self {
        let mut looks = interval_at(Instant::now() + LOOK, LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { connecting: JoinSet::new(), made: None, looks }
    }

    /// To be called when [`changed`](Self::changed) completes: begins to connect if `old` is stale.
    ///
    /// # Errors
    /// This node no longer trusts what `old` leads to.
    pub(super) fn look(
        &mut self,
        old: &Link,
        directory: &Arc<Directory>,
        target: Target,
        max: usize,
    ) -> io::Result<()> {
        if self.made.is_none() && self.connecting.is_empty() && old.is_stale() {
            old.check_trusted()?;
            let directory = Arc::clone(directory);
            self.connecting.spawn(async move {
                sleep(PAUSE).await;
                directory.connect(target, max).await
            });
        }
        Ok(())
    }

    /// Completes when an attempt has ended, and each second. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            biased;
            Some(ended) = self.connecting.join_next() => {
                // If it failed, the directory has told why.
                self.made = ended.ok().and_then(Result::ok);
            }
            _ = self.looks.tick() => {}
        }
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// The connection, once it is made.
    pub(super) fn take(&mut self) -> Option<Link> {
        self.made.take()
    }
}
