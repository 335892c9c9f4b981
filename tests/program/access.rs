//! Access rules, with real processes: who may do what, and what happens when the rules change.

mod guarded;
mod limits;
mod owners;
mod proofs;
mod remedies;
mod resp;
mod rights;

use std::time::Duration;

const TTL: Duration = Duration::from_secs(20);
