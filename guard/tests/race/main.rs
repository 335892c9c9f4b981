//! Holders race for each kind of resource: real ones, over a real lease table whose clock is turned by hand.
//!
//! Half a dozen holders, each a thread, take leases on one key, exclusive and shared, touch, read, renew, write and release.
//! Many are *late*: their time-to-live is over before they write, often with a newer holder at work already. Every
//! exclusive holder adds one to what it read, every shared one writes what it read; so at the end the number in the
//! resource is that of the exclusive writes that were accepted, or an update was lost.
//!
//! Each resource is raced for twice: with its guard nothing may go wrong, and without it must. `broken` shows the
//! referee guards with one mistake each.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;
#[path = "../http/client.rs"]
mod client;
mod file;
mod http;
mod leases;
mod memory;
mod objects;
mod pool;
mod postgres;
mod race;
mod redis;
mod referee;
mod resource;
mod scratch;
