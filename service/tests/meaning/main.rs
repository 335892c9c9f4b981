//! What requests mean, over a real node, without any protocol.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod acquire;
mod dropped;
mod ended;
mod many;
mod node;
mod rights;
mod transact;
mod validate;
mod visit;
mod waiting;
