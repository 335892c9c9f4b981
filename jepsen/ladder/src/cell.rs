//! What was expected, and what happened.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::judge::{Counts, Mark};
use crate::moves::Move;

/// A rung under a fault.
#[derive(Debug, Serialize, Deserialize)]
pub struct Cell {
    pub(crate) rung: u8,
    pub(crate) fault: Fault,
    pub(crate) expected: Mark,
    pub(crate) measured: Mark,
    /// Why it is so, where one could expect something else.
    #[serde(skip_deserializing)]
    pub(crate) reason: Option<&'static str>,
    #[serde(skip_deserializing)]
    pub(crate) rounds: Vec<Played>,
}

/// A round of a cell.
#[derive(Debug, Serialize)]
pub(crate) struct Played {
    pub(crate) mark: Mark,
    pub(crate) counts: Counts,
    pub(crate) events: Vec<Move>,
    /// How many of the events were before those of the fault.
    pub(crate) before_fault: usize,
    /// Why the mark is not known.
    pub(crate) unknown: Option<String>,
}

impl Cell {
    /// Whether a round came to something else than expected.
    pub(crate) fn deviates(&self) -> bool {
        self.rounds.iter().any(|round| round.mark != self.expected && round.mark != Mark::Unknown)
    }
}
