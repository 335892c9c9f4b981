//! The client of Ringfence: acquires leases, renews them, and notices in time that one is lost.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // Set by the tests of the workspace.
//! # let Some(program) = std::env::var_os("RINGFENCE_UNDER_TEST") else { return Ok(()) };
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let cluster = ringfence_harness::Cluster::builder(program).start().await?;
//! # let urls = cluster.nodes().iter().map(|node| node.url());
//! # // A write to a storage that checks the token.
//! # async fn write(_: ringfence_client::Token) {}
//! use std::time::Duration;
//! use ringfence_client::{Client, Error, State};
//!
//! let client = Client::connect(urls)?; // ["http://10.0.0.1:7400", "http://10.0.0.2:7400", …]
//! let lease = client.lock("accounts/42").ttl(Duration::from_secs(15)).holder("worker-7").acquire().await?;
//! assert_eq!(lease.state(), State::Held);
//!
//! // Another client tries. It could also wait: `.wait(…).acquire()`, or without `wait` for ever.
//! let other = client.lock("accounts/42").try_acquire().await;
//! assert!(matches!(other, Err(Error::Held { .. })));
//!
//! // The work is dropped before the lease can end; every write passes the token.
//! lease.run(async { write(lease.token()).await }).await?;
//! lease.release().await?;
//! # Ok(()) })}
//! ```
//!
//! # States of a lease
//!
//! ```text
//!                      confirmed                        confirmed
//!                     ┌─────────┐                  ┌─────────────────┐
//!                     ▼         │                  ▼                 │
//!  acquire ─────────▶ Held ─────┴─ 2/3 of its time passed ────▶ Unknown
//!                     │                                           │
//!                     └─────── its time passed, or the ───────────┴─▶ Lost, for good
//!                              cluster says that it ended
//! ```
//! Time counts from when the last confirmed request was *sent*, on a clock that keeps running while the machine sleeps and that no
//! time service slows down, less 0.2 % and 5 ms for clocks that differ. While the state is [`Held`](State::Held) or [`Unknown`](State::Unknown) the
//! cluster has the lease, unless an operator revoked it a moment ago. [`Lease::state`] reads the clock: it is right even if
//! no task ran.
//!
//! # What the client does
//!
//! - It renews all leases at a third of their time, with one call for all that are due.
//! - It asks the leader, as the last response named it, and the next node if one fails. Watches go to any other node.
//! - It notices within two seconds that a node has vanished or hangs, and repeats at another one what waits there. An acquire keeps
//!   its place in the queue.
//! - It looks names up in the background, at most once at a time, keeps the last good addresses, and tries all of them.
//! - It belongs to the cluster that answers first, and takes the response of another one for none.
//! - It repeats a call without a definite outcome for 5 s, an acquire with the same `lease_id`. Then the error is
//!   [`Error::Unknown`] if the call may have been done, or [`Error::Unavailable`] if it certainly was not. If an
//!   acquire fails in this way, or is dropped, the lease is released in the background. An acquire that was in the
//!   queue retries until its wait is over.
//! - After a 429 it waits for as long as the node asks for, and asks again; without so much time the error is [`Error::Rejected`].
//! - With https URLs ([`Client::connect_with`]) it verifies each node's certificate, and sends nothing before, least of all its
//!   [credential](Credential). It never goes from https to http, whatever a response names as the leader's URL.
//! - If more than eight acquires and releases are in flight, further ones share requests (`POST /v1/batch`): a program
//!   with many short leases gets about twice as many that way. No call waits for others to arrive. If grants wait for
//!   the mirror, nothing is batched.
//! - A program that ends leaves nothing behind: [`Client::close`] releases what is held, and when a runtime ends, a thread of its own
//!   does, for a second at most. Not so if the process is killed, or calls `std::process::exit`.
//! - It splits a wait into PUTs of 30 s that keep the place. After a wait, or a repeated PUT, it renews the lease once before
//!   handing it out.
//!
//! # Limits
//!
//! The client cannot stop a process that is paused: a holder that wakes up late writes late. Therefore send the
//! [token](Lease::token) with every write, to a resource that checks it (`guard/`). Leases are not reentrant. Two leases of
//! one client can deadlock each other; one lease on several keys cannot.

mod acquire;
mod attempts;
mod backoff;
mod client;
mod clock;
mod cluster;
mod consistency;
mod error;
mod held;
mod last;
mod lead;
mod lease;
mod lifetime;
mod list;
mod lock;
mod outcome;
mod outlive;
mod release;
mod releases;
mod renewal;
#[cfg(feature = "test-util")]
pub mod test_util;
mod transport;
mod watch;

pub use client::{Client, LeaseView};
pub use consistency::Consistency;
pub use error::{Error, Loss};
pub use lease::Lease;
pub use lifetime::State;
pub use list::Listing;
pub use lock::Lock;
pub use ringfence_wire as wire;
pub use ringfence_wire::{
    CertificateStatus, Check, Claim, ClusterStatus, Grant, Key, KeyList, KeyView, LeaseId, MemberStatus,
    Operation, Revision, Role, RulesRange, Token, Upgraded, Verdict, VerdictName, WantedKey, WatchEvent,
    WatchEventName, WatchedKey,
};
pub use transport::{Credential, TLS_LOG, Tls};
pub use watch::{Event, Watch};

/// Its example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
