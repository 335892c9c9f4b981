//! Nodes in one process, with real neighbours or simulated ones.

// Helpers of tests may unwrap as tests do, and have real ids and time unless they simulate them.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods)]

mod batching;
mod copies;
mod gate;
mod golden;
mod half_broken;
mod peers;
mod simulated;
mod slow;
mod support;
mod three_nodes;
mod tls;
mod upgrades;
