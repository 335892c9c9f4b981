//! The mirror against real Redis servers that are killed, emptied, stopped, full, slow, failed over and written to by
//! others, over a real lease table.
//!
//! Whatever happens, a [`Sampler`](sampler::Sampler) reads all the time and takes down two kinds of lies: a fence that
//! fell though its data lived, and a fence above a token that is live. And in the end the mirror is equal to the table: no
//! held key is missing, and no free one is called held.
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
