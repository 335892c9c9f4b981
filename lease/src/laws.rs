//! Property tests of the whole crate.

mod costs;
mod garbage;
mod histories;
pub(crate) mod make;
mod model;
mod script;
mod snapshots;
mod witness;
