//! The mirror of a real lease table on real Redis servers that are killed, emptied, stopped, full, slow, failed over and
//! written to by others.
//!
//! A [`Sampler`](sampler::Sampler) reads all the time and records two kinds of errors: a fence that fell without data loss,
//! and a fence above a live token. In the end the mirror must equal the table: no held key is missing, and no free key is
//! called held.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod before_answer;
mod faults;
mod groups;
mod proxy;
mod rights;
mod sampler;
mod table;
mod world;
mod writers;
