//! What happened in a round, in its order: the material of the judge and of the drawing.

use serde::Serialize;

use crate::step::{Answer, Step};

/// One thing that a holder, or the referee, did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Move {
    /// `A`, `B` or `C`; `S` for the servers.
    pub(crate) who: char,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) what: What,
    /// What the judge says of it.
    pub(crate) flag: Option<Flag>,
}

/// What is wrong with an access, or was prevented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flag {
    /// A stale write that was accepted.
    Stale,
    /// An access of an older holder that was rejected.
    Fenced,
    /// An access of the last holder that was rejected.
    LiveRejected,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// A step, and what came of it.
    Step {
        step: Step,
        answer: Answer,
    },
    /// Tries to acquire until the lock is held, or for so long that it counts as stuck: then `stuck` is what the servers
    /// say. The lock should have been free from `free_us` on.
    Wait {
        attempts: u32,
        free_us: u64,
        answer: Answer,
        stuck: Option<String>,
    },
    Killed,
    Stopped,
    Resumed,
    /// What was done to the servers, to a connection or a clock, as it was observed.
    Fault {
        observed: String,
    },
}
