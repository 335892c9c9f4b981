//! What the referee and a holder's process say to each other: a [`Step`] a line to the process, an [`Answer`] a line back.

use serde::{Deserialize, Serialize};

/// What a holder is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    /// Try once to acquire the lock. The client gives up when an answer takes longer.
    Acquire { within_ms: u64 },
    /// Renew the lock once.
    Touch,
    /// Ask the client whether, by its own clock, the lock is still held.
    Check,
    /// Read the stock count.
    Read,
    /// Write the count that was read, plus one.
    Write,
    /// Release the lock. The client gives up when an answer takes longer.
    Release { within_ms: u64 },
    /// Renew no more, as after an error that nobody looks at.
    StopRenewing,
    /// Report the state of the process.
    Report,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The lock is held; `pass` is what the storage is shown.
    Granted { pass: Pass },
    /// Somebody else holds the lock.
    Held,
    /// The client does not count itself a holder, and has undone what it did.
    Refused { why: String },
    /// There was no answer, or an error: the lock may be held or not. The client does not count itself a holder.
    Unsure { why: String },
    /// The lock is still held.
    Alive,
    /// The lock is not held, or not any more.
    Lost,
    /// The count was read.
    Read { count: i64 },
    /// The count was written.
    Written { count: i64 },
    /// The storage rejected the access.
    Rejected { why: String },
    /// The lock was released by this call.
    Released,
    /// The step was done; there is nothing to say.
    Done,
    /// The state of the process.
    Report { unix_s: i64, renewals: u64, lost: bool },
}

/// What a holder shows to the storage with each access.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pass {
    /// Nothing: the storage takes whatever comes.
    #[default]
    Nothing,
    /// A fencing token: the storage rejects one that is smaller than another that it has seen.
    Token(u64),
    /// A random name. A read registers it; a write is rejected if another name has been registered since.
    Name(String),
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Granted { pass: Pass::Token(token) } => write!(f, "granted, token {token}"),
            Self::Granted { .. } => write!(f, "granted"),
            Self::Held => write!(f, "held by another"),
            Self::Refused { why } => write!(f, "refused: {why}"),
            Self::Unsure { why } => write!(f, "no answer: {why}"),
            Self::Alive => write!(f, "still held"),
            Self::Lost => write!(f, "not held"),
            Self::Read { count } => write!(f, "{count}"),
            Self::Written { count } => write!(f, "{count}, accepted"),
            Self::Rejected { why } => write!(f, "rejected: {why}"),
            Self::Released => write!(f, "released"),
            Self::Done => write!(f, "done"),
            Self::Report { unix_s, renewals, lost } => {
                write!(f, "time {unix_s}, {renewals} renewals{}", if *lost { ", lost" } else { "" })
            }
        }
    }
}
