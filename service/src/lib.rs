//! What a request means, whichever protocol it came by.
//!
//! ```text
//!  door ──▶ Proof ──▶ Visit ───▶ Service ──▶ Allowed<Command> ──▶ Handle (raft)
//!           who is    admitted?  acquire,                              │
//!           it?       its cost   renew, read, …  ◀── outcome ◀─────────┘
//!  door ◀── its own words ◀── result or Failure ◀──┘
//! ```
//! A door (`api/`) speaks a protocol: it reads requests, shows who sent them, calls the [`Service`], and words what it returns. The
//! service knows no protocol. What it keeps of a request is its [`Visit`]: whatever must outlive that is in the replicated table.
//!
//! What this crate guarantees to every door:
//!
//! - A request is identified, counted, checked, held back and logged in one order, by its [`Visit`] alone.
//! - Nothing is proposed but what is [`Allowed`], which only `rights` makes, of what the rights of a [`Caller`] allow. The compiler keeps
//!   that: no door depends on `ringfence-raft`, and `clippy.toml` lets one function here propose, and one give orders to the members.
//! - Nothing is shown but what the rights allow.
//! - *Certainly not done* is kept apart from *maybe done*, by [`Failure::kind`] alone.
//! - An acquire that is dropped before it is [answered](Attempt::answered) is abandoned (`take_back`). After any answer, it is not.
//! - A command is sent before the future of its call is dropped, or never. Two kinds of tasks outlive a call. One takes back what a request
//!   has proposed that was dropped: one task for each such request, and no more for each principal than a node has connections by default. It
//!   ends once that is done, and for acquires after one attempt. The other drives the watches of a door while there are any.

mod acquire;
mod caller;
mod cluster;
mod commands;
mod done;
mod failure;
mod many;
mod measure;
mod mirror;
mod order;
mod reads;
mod request_log;
mod rights;
mod service;
mod take_back;
mod told;
mod transact;
mod transaction;
mod usage;
mod visit;
mod wait;
mod watch;

pub use acquire::Attempt;
pub use caller::Caller;
pub use done::{Acquired, Done};
pub use failure::Failure;
pub use many::Results;
pub use measure::METRICS;
pub use order::Order;
pub use reads::{Consistency, Page};
pub use request_log::{Ending, RequestLine};
pub use rights::{Allowed, Right};
pub use ringfence_access::Proof;
pub use ringfence_lease::LeaseState;
pub use ringfence_raft::Lines;
pub use service::{Options, Service};
pub use take_back::Unsent;
pub use transact::{Steps, Transacted};
pub use transaction::{CannotDo, Keys, Seen, Transaction};
pub use usage::BYTES_OF_A_REQUEST;
pub use visit::{Report, Visit};
pub use watch::{Encoder, Stream, Watchers};
