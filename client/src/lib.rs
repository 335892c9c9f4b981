//! The holder of Ringfence: takes leases, keeps them alive, and knows in time that one is lost.
//!
//! ```no_run
//! # async fn holder() -> Result<(), ringfence_client::Error> {
//! use std::time::Duration;
//! use ringfence_client::Client;
//!
//! let client = Client::connect(["http://10.0.0.1:7400", "http://10.0.0.2:7400", "http://10.0.0.3:7400"])?;
//! let lease = client.lock("accounts/42").ttl(Duration::from_secs(15)).holder("worker-7").acquire().await?;
//! let fence = lease.fence("accounts/42");
//! let work = async { /* shows lease.token() and fence with every write */ };
//! lease.run(work).await?;
//! lease.release().await?;
//! # Ok(()) }
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
//! - It asks the leader, as the last answer named it, and goes on to the next node where one fails.
//! - A call without a definite answer is repeated for 5 s, the same under the same `lease_id`. What may or may not have
//!   been done is [`Error::Unknown`], what certainly was not is [`Error::Unavailable`]; a lease whose acquire ends so, or
//!   is dropped, is released in the background.
//! - A wait is cut into PUTs of 30 s that keep the place. After a wait the lease is renewed once before it is handed out.
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
mod cluster;
mod endpoints;
mod error;
mod events;
mod exchange;
mod fate;
mod held;
mod keeper;
mod lease;
mod lifetime;
mod list;
mod lock;
mod watch;

pub use client::{Client, Consistency, LeaseView};
pub use cluster::{ClusterStatus, MemberStatus};
pub use error::{Error, Loss};
pub use events::{Event, EventKey, EventKind};
pub use lease::{Lease, State};
pub use list::Listing;
pub use lock::Lock;
pub use ringfence_wire as wire;
pub use ringfence_wire::{
    Check, Claim, Grant, Key, KeyList, KeyView, LeaseId, Operation, Revision, Token, Verdict, VerdictName,
};
pub use watch::Watch;
