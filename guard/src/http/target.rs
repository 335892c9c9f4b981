use ringfence_wire::Key;

/// What a request is for, as a [`GuardLayer`](super::GuardLayer) is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// What this key guards.
    Guarded(Key),
    /// Something that no key guards. The request passes, whatever it does.
    Open,
    /// Something that a key should guard, though there is none, as for a name that is too long for a key. The request is
    /// answered 400, also if it only reads.
    Refused,
}
