use ringfence_wire::{Grant, Waiting};

/// What an acquire came to.
#[derive(Clone, Debug)]
pub enum Acquired {
    /// The lease is granted.
    Granted {
        /// The grant.
        grant: Box<Grant>,
        /// Whether it had been granted before.
        standing: bool,
        /// Whether the mirror has it; `None` if grants do not wait for the mirror.
        mirrored: Option<bool>,
    },
    /// The lease has this place in the queue, and keeps it for a while.
    Waiting(Waiting),
}

/// What an operation came to.
#[derive(Clone, Debug)]
pub enum Done {
    /// An acquire.
    Acquired(Acquired),
    /// A renewal.
    Renewed(Box<Grant>),
    /// A release.
    Released,
}
