//! The guard in a real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod by_connection;
mod claims;
mod collations;
mod column;
mod costs;
mod database;
mod kills;
mod mutants;
mod pairs;
mod protect;
mod shown;
mod triggers;
mod upgrade;
