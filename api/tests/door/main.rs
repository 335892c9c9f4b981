//! The API over a real node and real connections. Every response is checked against the OpenAPI document.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod acquire;
mod client;
mod connection;
mod dashboard;
mod document;
mod documented;
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
