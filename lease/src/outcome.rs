use ringfence_wire::{Blocker, EndReason, Grant, Waiting};
use serde::{Deserialize, Serialize};

/// What became of a [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// An acquire made this grant.
    Granted(Box<Grant>),
    /// An acquire found its lease granted already, or a renewal prolonged it.
    Standing(Box<Grant>),
    /// An acquire has its place in the queue.
    Waiting(Waiting),
    /// A start, release, revoke or detach is done, or had nothing to do.
    Done,
    /// The command changed nothing (but a waiter whose last wait ran out left its place).
    Refused(Refusal),
    /// An acquire found its lease waiting, and another acquire stands for that for longer: when this one's own wait is over,
    /// the place is still there.
    Kept(Waiting),
}

/// Why a command was refused. An ordinary answer, which every replica computes alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The acquire tries once, and a key is not free.
    Held {
        /// Some of the live leases in the way.
        holders: Vec<Blocker>,
        /// How many wait in the longest of the queues.
        waiters: u64,
    },
    /// The lease waited in vain.
    WaitTimeout,
    /// The same lease_id has other keys.
    Mismatch,
    /// The lease still waits.
    NotGranted,
    /// The token is not live on that key.
    NotLive,
    /// The lease ended; a release is refused so only if it ended otherwise.
    Gone(EndReason),
    /// The lease was never seen, or is forgotten.
    Unknown,
    /// A queue is full.
    Overloaded,
}
