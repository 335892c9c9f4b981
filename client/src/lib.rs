//! The holder of Ringfence: takes leases, keeps them alive, and knows in time that one is lost.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # // As the tests of the workspace name it.
//! # let Some(program) = std::env::var_os("RINGFENCE_UNDER_TEST") else { return Ok(()) };
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let cluster = ringfence_harness::Cluster::builder(program).start().await?;
//! # let urls = cluster.nodes().iter().map(|node| node.url());
//! # // What a storage would do with the token.
//! # async fn write(_: ringfence_client::Token) {}
//! use std::time::Duration;
//! use ringfence_client::{Client, Error, State};
//!
//! let client = Client::connect(urls)?; // ["http://10.0.0.1:7400", "http://10.0.0.2:7400", …]
//! let lease = client.lock("accounts/42").ttl(Duration::from_secs(15)).holder("worker-7").acquire().await?;
//! assert_eq!(lease.state(), State::Held);
//!
//! // Another one tries, and may as well wait: `.wait(…).acquire()`, or without `wait` for ever.
//! let other = client.lock("accounts/42").try_acquire().await;
//! assert!(matches!(other, Err(Error::Held { .. })));
//!
//! // The work is dropped before the lease can end; every write shows the token.
//! lease.run(async { write(lease.token()).await }).await?;
//! lease.release().await?;
//! # Ok(()) })}
//! ```
//!
//! # How a lease stands
//!
//! ```text
//!                      confirmed                        confirmed
//!                     ┌─────────┐                  ┌─────────────────┐
//!                     ▼         │                  ▼                 │
//!  acquire ─────────▶ Held ─────┴── 2/3 of its time gone ─────▶ Unknown
//!                     │                                           │
//!                     └──────── its time gone, or the ────────────┴─▶ Lost, for good
//!                               cluster says that it ended
//! ```
//! A holder counts from when it *sent* the last request that was confirmed, on a clock that runs while the machine sleeps,
//! less 0.2 % and 5 ms for clocks that differ. While it says [`Held`](State::Held) or [`Unknown`](State::Unknown) the
//! cluster has the lease, unless an operator revoked it a moment ago. Looking is enough: no task has to run for
//! [`Lease::state`] to be right.
//!
//! # What it does
//!
//! - All leases of a client are renewed at a third of their time, by one call for all that are due.
//! - It asks the leader, as the last answer named it, and goes on to the next node where one fails. Watches go to any other.
//! - A call without a definite answer is repeated for 5 s, the same under the same `lease_id`. What may or may not have
//!   been done is [`Error::Unknown`], what certainly was not is [`Error::Unavailable`]; a lease whose acquire ends so, or
//!   is dropped, is released in the background. An acquire that stood in the queue goes on for as long as it was to wait.
//! - Where more than eight acquires and releases are under way at once, further ones share requests (`POST /v1/batch`): a
//!   program in which many hold leases for a short time does about twice as many so. Nothing waits for others to come. Where
//!   grants wait for the mirror, none share.
//! - A wait is cut into PUTs of 30 s that keep the place. After a wait, and where a PUT was repeated, the lease is renewed once
//!   before it is handed out.
//!
//! # What it does not
//!
//! It cannot stop a process that is stopped itself: whoever wakes up late writes late. Against that, show the
//! [token](Lease::token) with every write, to a resource that guards itself (`guard/`). Leases are not
//! reentrant, two leases of one client can deadlock each other (one lease over several keys cannot), and there is no TLS, as
//! the nodes have none.

mod acquire;
mod backoff;
mod call;
mod client;
mod endpoints;
mod error;
mod events;
mod exchange;
mod fate;
mod gather;
mod held;
mod keeper;
mod lease;
mod lifetime;
mod list;
mod lock;
mod watch;

pub use client::{Client, Consistency, LeaseView};
pub use error::{Error, Loss};
pub use events::Event;
pub use lease::{Lease, State};
pub use list::Listing;
pub use lock::Lock;
pub use ringfence_wire as wire;
pub use ringfence_wire::{
    Check, Claim, ClusterStatus, Grant, Key, KeyList, KeyView, LeaseId, MemberStatus, Operation, Revision,
    Role, Token, Verdict, VerdictName, WatchEvent, WatchEventName, WatchedKey,
};
pub use watch::Watch;

/// The example there compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
