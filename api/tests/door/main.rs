//! The door over a real single node, driven over real connections. Every answer is held to the OpenAPI document.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod acquire;
mod client;
mod connection;
mod dashboard;
mod document;
mod ended;
mod keys;
mod many;
mod operation;
mod renew;
mod requests;
mod service;
mod unanswered;
mod validate;
mod waiting;
mod watch;
