use ringfence_wire::{EndReason, Holder, Key, LeaseId, Mode, PrincipalName, Revision, Token};

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number of this change.
    pub revision: Revision,
    /// The lease that changed.
    pub lease_id: LeaseId,
    /// Whose it is; `None` if nobody owns it.
    pub by: Option<PrincipalName>,
    /// What happened to it.
    pub change: Change,
    /// Its token; `None` if it was never granted.
    pub token: Option<Token>,
    /// Its keys in the order of the request, with their modes and their fences after this change.
    pub keys: Vec<(Key, Mode, Token)>,
    /// Its public label.
    pub holder: Option<Holder>,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was granted, at once or from the queue.
    Granted,
    /// It took its place in the queues of its keys.
    Queued,
    /// It was live and ended.
    Ended(EndReason),
    /// It waited and left the queues: `None` if its wait ran out.
    Left(Option<EndReason>),
}
