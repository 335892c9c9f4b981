use ringfence_lease::Attachment;
use ringfence_wire::LeaseId;

use crate::door::Door;
use crate::door::access::Caller;

/// Abandons acquires whose connection closes before they are answered.
///
/// When a connection closes, hyper drops the handler, and this guard with it: 2 s later the leases end, waiting or granted,
/// unless another acquire or a renewal for them came. Any response disarms the guard, also `indeterminate`: it tells the
/// client to repeat, and the client must find its grant or its place in the queue however long the cluster is without a
/// leader. If it never comes back, that costs the same as a holder that vanishes: the wait, or the time-to-live.
///
/// The order is always right: a proposal whose caller is gone either is still at this node and never sent, or was sent before
/// the detach. It is not retried, so it cannot follow the detach.
pub(crate) struct AbandonGuard<'a> {
    door: &'a Door,
    caller: &'a Caller,
    acquires: Vec<(LeaseId, Attachment)>,
}

impl<'a> AbandonGuard<'a> {
    /// Must be created before the acquires are proposed.
    pub(crate) fn new(door: &'a Door, caller: &'a Caller, acquires: Vec<(LeaseId, Attachment)>) -> Self {
        Self { door, caller, acquires }
    }

    /// Disarms the guard: there is a response.
    pub(crate) fn answered(mut self) {
        self.acquires.clear();
    }
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        for &(lease_id, attachment) in &self.acquires {
            self.door.detach_later(self.caller, lease_id, attachment);
        }
    }
}
