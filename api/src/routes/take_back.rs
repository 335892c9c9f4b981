use ringfence_lease::Attachment;
use ringfence_raft::Handle;
use ringfence_wire::LeaseId;

/// The duty to take acquires back if their connection closes before they are answered.
///
/// When a connection closes, hyper drops the handler, and this with it: 2 s later the leases end, waiting or granted,
/// unless another acquire stands for it or a renewal came. Any answer ends the duty, `indeterminate` too: its client was told to
/// repeat, and must find its grant or its place in the queue however long the cluster takes to have a leader again. A
/// client that was told so and never comes back costs what a holder costs that vanishes: the wait, or the time-to-live.
///
/// Nothing can go wrong half-way. A proposal whose caller is gone is still with this node, and never sent, or already
/// on its way, ahead of the taking back; and it is not tried again, so that it cannot follow after it.
pub(crate) struct TakeBack<'a> {
    handle: &'a Handle,
    acquires: Vec<(LeaseId, Attachment)>,
}

impl<'a> TakeBack<'a> {
    /// To be called before the acquires are proposed.
    pub(crate) fn unless_answered(handle: &'a Handle, acquires: Vec<(LeaseId, Attachment)>) -> Self {
        Self { handle, acquires }
    }

    /// There is an answer.
    pub(crate) fn answered(mut self) {
        self.acquires.clear();
    }
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        for &(lease_id, attachment) in &self.acquires {
            self.handle.detach_later(lease_id, attachment);
        }
    }
}
