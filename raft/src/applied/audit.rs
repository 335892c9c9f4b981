//! A line of the log for each grant and each end of a lease: of the target `ringfence::audit`, at the level *debug*, for
//! there may be many. The node writes it that proposed the entry, so each stands in one node's log.

use ringfence_lease::{Change, Event};
use ringfence_wire::EndReason;
use tracing::Level;

/// Tells of `event`, which was made by an entry that this node proposed. The lease id is its owner's secret.
pub(crate) fn tell(event: &Event) {
    if !tracing::enabled!(target: "ringfence::audit", Level::DEBUG) {
        return;
    }
    let act = match event.change {
        Change::Granted => "grant",
        Change::Ended(EndReason::Released) => "release",
        Change::Ended(EndReason::Expired) => "expire",
        Change::Ended(EndReason::Revoked) => "end-revoked",
        Change::Ended(EndReason::Abandoned) => "abandon",
        Change::Queued | Change::Left(_) => return,
    };
    let keys: Vec<&str> = event.keys.iter().map(|(key, ..)| key.as_str()).collect();
    let token = event.token.map(|token| token.0);
    let holder = event.holder.as_ref().map(|holder| holder.as_str());
    tracing::debug!(target: "ringfence::audit", act, ?keys, token, holder, revision = event.revision.0, "a lease changed");
}
