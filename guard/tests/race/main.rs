//! Holders race for each kind of resource, with a real lease table on a manual clock.
//!
//! Half a dozen holders, one thread each, acquire leases on one key, exclusive and shared, touch, read, renew, write and
//! release. Many are *late*: their lease expires before they write, often with a newer holder at work already. Every
//! exclusive holder writes what it read plus one, every shared holder what it read. So unless an update was lost, the number in the
//! resource at the end is the count of accepted exclusive writes.
//!
//! The SQL statements are those that the documents show. Each resource is raced for twice: with its guard, nothing may go wrong; without
//! it, something must. `broken` shows the referee guards with one mistake each.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;
#[path = "../http/client.rs"]
mod client;
mod file;
mod http;
#[path = "../mysql/installation.rs"]
mod installation;
mod leases;
mod memory;
mod mysql;
mod objects;
mod pool;
mod postgres;
mod race;
mod redis;
mod referee;
mod resource;
mod scratch;
#[path = "../postgres/shown.rs"]
mod shown;
mod sqlite;
mod statement;
