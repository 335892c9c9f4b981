//! The audit log: one line for each grant and each end of a lease, with the target `ringfence::audit` at level *debug*.
//! Only the node that proposed the entry logs it.

use ringfence_lease::{Change, Event};
use ringfence_wire::EndReason;
use tracing::Level;

/// Logs an event of an entry that this node proposed. Omits the lease id, which is its owner's secret.
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
    let (by, revision) = (event.by.as_ref().map(|name| name.as_str()), event.revision.0);
    tracing::debug!(target: "ringfence::audit", act, ?keys, token, by, holder, revision, "a lease changed");
}
