//! The first command of a new cluster: the revision that it counts from, and so its tokens.
//!
//! They are to be above those of every earlier cluster that wrote to the same resources: a guard there rejects whatever is
//! below. A wall clock sees to that, and this is its only use; or an operator does, by a number. Where somebody knows of an
//! earlier cluster that came further all the same, the new one waits before its first grant, until that is settled.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use ringfence_lease::Command;
use ringfence_wire::Revision;
use tokio::time::sleep;

/// How long to wait before the elders are asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// Who may know of earlier clusters.
pub trait Elders: Send + Sync {
    /// Why no new cluster may start at `first_revision`, and the way out: because an earlier one came that far. `None` where
    /// nothing speaks against it, and where that cannot be known now. It has to return within a bounded time.
    fn objection(
        &self,
        first_revision: Revision,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;
}

/// How a new cluster starts.
pub(crate) struct Start {
    pub(crate) first_revision: Option<Revision>,
    pub(crate) elders: Option<Box<dyn Elders>>,
}

impl Start {
    /// The command; `None`, after a while, where there is an objection.
    pub(crate) async fn command(&self) -> Option<Command> {
        let revision = self.first_revision.unwrap_or_else(now);
        if let Some(elders) = &self.elders
            && let Some(objection) = elders.objection(revision).await
        {
            tracing::error!("this new cluster does not start: {objection}");
            sleep(AGAIN).await;
            return None;
        }
        Some(Command::Start { revision })
    }
}

/// Unix milliseconds × 1,024.
fn now() -> Revision {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Revision(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX >> 12) << 10)
}
