use ringfence_wire::{EndReason, Holder, Key, LeaseId, Mode, Revision, Token};

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number of this change.
    pub revision: Revision,
    /// The lease that changed.
    pub lease_id: LeaseId,
    /// What happened to it.
    pub change: Change,
    /// Its token; `None` for a lease that waits or never was granted.
    pub token: Option<Token>,
    /// Its keys in the order they were asked for, how each is claimed, and its fence after this change.
    pub keys: Vec<(Key, Mode, Token)>,
    /// The public label.
    pub holder: Option<Holder>,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was granted, at once or from the queue.
    Granted,
    /// It took its place in the queue.
    Queued,
    /// It was live and ended.
    Ended(EndReason),
    /// It waited and left the queue: `None` when its wait ran out.
    Left(Option<EndReason>),
}
