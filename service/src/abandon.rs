use ringfence_lease::Attachment;
use ringfence_wire::LeaseId;

use crate::caller::Caller;
use crate::service::Service;

/// Abandons acquires of one request whose client goes away before they are answered.
///
/// Then the door drops the future of the call, and this guard with it: 2 s later the leases end, waiting or granted,
/// unless another acquire or a renewal for them came. Any answer disarms the guard, also an indeterminate one: it tells the
/// client to repeat, and the client must find its grant or its place in the queue however long the cluster is without a
/// leader. If it never comes back, that costs the same as a holder that vanishes: the wait, or the time-to-live.
///
/// The order is always right: a proposal whose caller is gone either is still at this node and never sent, or was sent before
/// the detach. It is not retried, so it cannot follow the detach.
pub(crate) struct AbandonGuard<'a> {
    service: &'a Service,
    caller: &'a Caller,
    /// As they were proposed together.
    parts: Vec<Vec<(LeaseId, Attachment)>>,
}

impl<'a> AbandonGuard<'a> {
    /// Must be created before the acquires are proposed.
    pub(crate) fn new(
        service: &'a Service,
        caller: &'a Caller,
        acquires: Vec<(LeaseId, Attachment)>,
    ) -> Self {
        let mut guard = Self { service, caller, parts: Vec::new() };
        guard.add(acquires);
        guard
    }

    /// Adds another part, before that is proposed.
    pub(crate) fn add(&mut self, acquires: Vec<(LeaseId, Attachment)>) {
        if !acquires.is_empty() {
            self.parts.push(acquires);
        }
    }

    /// Disarms the guard: there is an answer.
    pub(crate) fn answered(mut self) {
        self.parts.clear();
    }
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            let Self { service, caller, parts } = self;
            service.handle.detach_later(caller.asker(), caller.owner(), std::mem::take(parts));
        }
    }
}
