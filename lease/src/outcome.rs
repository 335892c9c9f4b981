use std::num::NonZeroU32;

use ringfence_wire::{EndReason, Grant, Holder, Key, ModeName, Token, Waiting};
use serde::{Deserialize, Serialize};

/// The result of a [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The acquire was granted at once.
    Granted(Box<Grant>),
    /// The acquire found its lease already granted, or the renewal extended it.
    Standing(Box<Grant>),
    /// The acquire has a place in the queue.
    Waiting(Waiting),
    /// The start, release, revoke or detach is done, or had nothing to do.
    Done,
    /// The command changed nothing (except that a waiter whose wait was over has left its queues).
    Refused(Refusal),
    /// The acquire found its lease waiting, for longer than its own wait because of another request. At the end of this
    /// wait, the place is still there.
    Kept(Waiting),
    /// All changes of the conditional are done. The grants of its acquires, in their order. Since rules 4.
    Changed(Vec<Grant>),
}

/// A live lease that blocks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocking {
    /// The key that it holds.
    pub key: Key,
    /// Its token.
    pub token: Token,
    /// Its public label.
    pub holder: Option<Holder>,
    /// Its mode on the key.
    pub mode: ModeName,
    /// The limit of a shared mode.
    pub limit: Option<NonZeroU32>,
    /// How long it lives unless renewed, in milliseconds.
    pub expires_in_ms: u64,
}

/// Why a command was refused. An ordinary result, the same on every replica, except [`Refusal::NotYet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The acquire tried once, or is one of a conditional, and a key was not free.
    Held {
        /// Some of the live leases that block it.
        holders: Vec<Blocking>,
        /// The length of the longest of the queues.
        waiters: u64,
    },
    /// The wait timed out.
    WaitTimeout,
    /// The lease_id belongs to a lease with other keys; for a conditional, to any lease that is live or waits.
    Mismatch,
    /// The lease still waits.
    NotGranted,
    /// The token is not live on that key; for a conditional, also if its lease has no value or is not the requester's own.
    NotLive,
    /// The lease ended. A release gets this only if the lease ended otherwise.
    Gone(EndReason),
    /// The lease is unknown, or was forgotten.
    Unknown,
    /// A queue is full.
    Overloaded,
    /// The owner has as many leases as its quota allows. Since rules 2.
    TooManyLeases {
        /// The quota.
        most: u32,
    },
    /// The owner has as many waiting leases as its quota allows. Since rules 2.
    TooManyWaiting {
        /// The quota.
        most: u32,
    },
    /// The owner's leases take as much memory as its quota allows. Since rules 2.
    TooManyBytes {
        /// The quota.
        most: u64,
    },
    /// All leases together take as much memory as they may. Since rules 2.
    Full,
    /// The rules in use do not have the command: it is in no entry, and no table decided this.
    NotYet {
        /// The rules in use, as far as the node that refused it knows.
        rules: u8,
        /// The first rules that have the command.
        since: u8,
    },
    /// A condition does not hold. Since rules 4.
    Changed {
        /// On this key.
        key: Key,
    },
    /// The acquire has a key that only conditionals acquire, because it [is of a database](Key::is_of_database). Since rules 5.
    OfDatabase {
        /// The key.
        key: Key,
    },
}
