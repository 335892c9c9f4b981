//! The rules of Ringfence: the lease table as a pure function of a log.
//!
//! [`LeaseTable::apply`] takes the next entry of the log, a time and some [`Command`]s, and returns an [`Outcome`] for
//! each command and an [`Event`] for each change. It reads no clock, and depends on no random number and no hash order.
//! So all replicas that applied the same entries have the same table, gave the same outcomes, and write the same bytes as
//! a snapshot.
//!
//! ```text
//!              (at, commands)                                  outcomes, events
//!                    |                                                ^
//!                    v                                                |
//!   1. advance the time to max(last, at)                              |
//!   2. end what is due: waiters by their wait,  --- each end ---> grant the waiters that then fit,
//!      then leases by their ttl                                       |    now or in a later entry
//!   3. acquire, renew, release, revoke, detach  ----------------------'
//! ```
//!
//! The rules are in `table/`, the collections that they use in `store/`.
//!
//! **One counter.** Every grant, every end, and every time a lease enters or leaves a queue takes the next
//! [`Revision`](ringfence_wire::Revision). A lease's token is the revision of its grant. So tokens are unique and always
//! increase, without a counter per key. Renewals, repeats and refusals change nothing for others and take no revision.
//!
//! **The fence** of a key is its oldest live token or, if nobody holds it, the token that the next grant would have. It
//! never decreases: a new holder's token is larger than all earlier ones, and an end takes a revision too.
//!
//! **The queue** is exact and cheap. A waiter that fits a key keeps fitting it, and a grant changes nothing for any other
//! lease (proved at `Queue`). So only the end of a lease can let waiters in, and only on its keys. Each waiter counts the
//! keys that block it, and is granted when that count reaches zero.
//!
//! **An entry is short.** Its cost depends on what its commands touch, not on the size of the table. After some thousand
//! expiries, or grants from queues, the rest is left to the next entry, which the leader proposes at once
//! ([`LeaseTable::next_due_ms`]). Until then a lease past its deadline is live, and nobody overtakes a waiter that is
//! still to be granted.
//!
//! **Lease ids belong to their owner.** Since rules 2, a request may name the principal that it is from ([`Owner`]). Its lease
//! ids are a space of their own: two principals may use the same id for two leases, and neither can see or end the other's.
//! The table knows no access rules: it compares names, and counts leases against the quotas that a request carries.
//!
//! **Safety does not rest on time.** Deadlines only decide when an entry of the log ends a lease. Until one does, the
//! lease is live, for reads too. The token keeps a late writer out.
//!
//! **The rules have versions.** All that `apply` decides follows from the log and from [`LeaseTable::rules`], which are part
//! of the table: 1 in a new one, raised by entries of the log, never lowered. So programs of different versions agree, as long
//! as each supports the rules in use ([`SUPPORTED`]). A later version makes its difference where [`LeaseTable::raise_rules`]
//! sets the limits, or asks for the rules where it decides. A new command belongs to new rules ([`Command::since`]): whoever makes
//! entries keeps it out of those under older ones.
//!
//! **A snapshot** is written from a view of one instant ([`LeaseTable::freeze`]), on any thread, while entries are applied.
//! View and table share memory; a change copies only the few leases next to it. [`LeaseTable::restore`] reads a snapshot
//! from a stream, and needs little more memory than the table that it builds.
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
mod owner;
mod requests;
mod rules;
mod steps;
mod store;
mod table;
mod value;

pub use command::{
    Acquire, Attachment, Command, CommandRight, Condition, Conditional, KeyChange, NamedKeys, Subject,
};
pub use event::{Change, Event};
pub use outcome::{Blocking, Outcome, Refusal};
pub use owner::{Owner, Quota, Request};
pub use rules::{NAMES, SUPPORTED, UnsupportedRules};
pub use table::{
    Fence, Found, FrozenTable, LeaseState, LeaseTable, RestoreError, Sieve, was_of_another_name,
};
pub use value::Value;
