//! The guard of HTTP, over real connections to a real listener.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod overtaking;
mod refusals;
mod service;
