//! The rules of Ringfence: the lease table as a pure function of a log.
mod claims;
mod command;
mod deadlines;
mod ended;
mod event;
#[cfg(test)]
mod laws;
mod lease;
mod limits;
mod line;
mod lines;
mod outcome;
mod slots;
mod table;
mod tally;

pub use command::{Acquire, Attachment, Command};
pub use event::{Change, Event};
pub use outcome::{Outcome, Refusal};
pub use table::{LeaseState, LeaseTable, RestoreError};
