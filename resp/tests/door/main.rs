//! Clients that speak the Redis protocol to a real node, over real connections.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod connection;
mod hostile;
mod locks;
mod names;
mod node;
mod redis;
mod scripts;
mod tokens;
mod transactions;
