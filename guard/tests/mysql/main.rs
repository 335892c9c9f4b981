//! The guard in a real MariaDB, for drivers that count the rows that a statement matched, and for those that count the
//! rows whose values changed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod column;
mod database;
mod installation;
mod locks;
#[path = "../postgres/pairs.rs"]
mod pairs;
#[path = "../postgres/shown.rs"]
mod shown;
mod triggers;
