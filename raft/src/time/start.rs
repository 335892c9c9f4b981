//! The first command of a new cluster: where its revisions, and so its tokens, start.
//!
//! They must be above those of every earlier cluster that protected the same resources: a guard there rejects smaller ones.
//! The wall clock provides that; or an operator gives a number. If an earlier cluster is known to have come
//! further all the same, the new one takes no command until that is resolved.

use std::pin::Pin;
use std::time::Duration;

use ringfence_lease::Command;
use ringfence_wire::Revision;
use tokio::time::sleep;

use crate::time::wall::WallClock;

/// Pause before the elders are asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// A source of knowledge about earlier clusters.
pub trait Elders: Send + Sync {
    /// Why no new cluster may start at `first_revision`, because an earlier one came that far, and what to do about it.
    /// `None` if there is no objection, or that cannot be known now. Returns within a bounded time.
    fn objection(
        &self,
        first_revision: Revision,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;
}

/// How a new cluster starts.
pub(crate) struct NewCluster {
    pub(crate) first_revision: Option<Revision>,
    pub(crate) elders: Option<Box<dyn Elders>>,
    pub(crate) clock: WallClock,
}

impl NewCluster {
    /// The command; `None`, after a pause, if there is an objection.
    pub(crate) async fn command(&self) -> Option<Command> {
        let revision = first_revision(self.first_revision, self.clock.revision());
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

fn first_revision(given: Option<Revision>, clock: Revision) -> Revision {
    match given {
        Some(ahead) if ahead > clock => Revision(ahead.0 | 1),
        given => given.unwrap_or(clock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::wall::PER_MS;

    #[test]
    fn a_first_revision_shows_whether_it_was_ahead_of_the_clock() {
        let clock = Revision(9 * PER_MS);
        assert_eq!(first_revision(None, clock), clock);
        assert_eq!(first_revision(Some(Revision(1_000)), clock), Revision(1_000));
        assert_eq!(first_revision(Some(Revision(10 * PER_MS)), clock), Revision(10 * PER_MS + 1));
        assert_eq!(first_revision(Some(Revision(10 * PER_MS + 1)), clock), Revision(10 * PER_MS + 1));
    }
}
