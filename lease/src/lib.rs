//! The rules of Ringfence: the lease table as a pure function of a log.
//!
//! [`LeaseTable::apply`] takes the next entry of the log, a time and some [`Command`]s, and returns an [`Outcome`] for
//! each command and an [`Event`] for each change. It reads no clock, draws no random number and depends on no hash order.
//! So all replicas that applied the same entries have the same table, gave the same outcomes, and write the same bytes as
//! a snapshot.
//!
//! ```text
//!              (at, commands)                                  outcomes, events
//!                    |                                                ^
//!                    v                                                |
//!   1. advance the time to max(last, at)                              |
//!   2. end what is due: waiters by their wait,  --- each end ---> grant the waiters that it lets in,
//!      then leases by their ttl                                       |    now or in a later entry
//!   3. acquire, renew, release, revoke, detach  ----------------------'
//! ```
//!
//! The rules are in `table/`; the collections behind them, and what keeps them in step, in `store/`.
//!
//! **One number.** Every grant, every end, every place taken or left in a queue takes the next
//! [`Revision`](ringfence_wire::Revision), and a lease's token is the revision of its grant. So tokens are unique and
//! always rise, without a counter per key. What changes nothing for others (renewals, repeats, refusals) takes none.
//!
//! **The fence** of a key is its oldest live token or, if nobody holds it, the token that the next grant would have. It
//! cannot fall: a new holder's token is larger than all before, and an end takes a revision too.
//!
//! **The queue** is exact and cheap because a waiter that fits a key keeps fitting it, and because a grant changes nothing
//! for anybody else (proved at `Queue`). Only an end lets waiters in, and only on the keys of the lease that ended. Each
//! waiter counts the keys that block it, and is granted when that count reaches zero.
//!
//! **An entry is short.** It costs what its commands touch, whatever the table holds. After some thousand expirations, or
//! grants from queues, the rest is left to the next entry, which the leader proposes at once
//! ([`LeaseTable::next_due_ms`]). Until then a lease past its deadline is live, and nobody overtakes a waiter that is
//! still to be granted.
//!
//! **Safety does not rest on time.** Deadlines only decide when an entry of the log ends a lease. Until one does, the
//! lease is live, for reads as well. It is the token that keeps a late writer out.
//!
//! **A snapshot** is written from a view of one instant ([`LeaseTable::freeze`]), on any thread, while entries are applied.
//! View and table share their memory; a change copies the few leases next to it. [`LeaseTable::restore`] reads a snapshot
//! from a stream, and needs little more memory than the table that it makes.
//!
//! No input makes this crate panic: commands need not come from the HTTP API, nor snapshots from this program.

mod command;
mod event;
mod keys;
#[cfg(test)]
mod laws;
mod lease;
mod limits;
mod outcome;
mod requests;
mod steps;
mod store;
mod table;

pub use command::{Acquire, Attachment, Command};
pub use event::{Change, Event};
pub use outcome::{Outcome, Refusal};
pub use table::{Fence, FrozenTable, LeaseState, LeaseTable, RestoreError};
