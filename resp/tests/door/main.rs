//! What clients of the Redis protocol get, from a real node over real connections.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod connection;
mod hostile;
mod locks;
mod node;
mod redis;
mod scripts;
mod tokens;
mod transactions;
