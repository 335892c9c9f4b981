//! The rules of Ringfence: the lease table as a pure function of a log.
//!
//! [`LeaseTable::apply`] takes the next entry of the log, a time and some [`Command`]s, and answers with an
//! [`Outcome`] for each command and an [`Event`] for each change. Nothing else goes in: no clock, no random number,
//! no order of a hash map. So every replica that applied the same entries has the same table and gave the same
//! answers, and the bytes of a snapshot are the same on all of them.
//!
//! ```text
//!              (at, commands)                                  outcomes, events
//!                    |                                                ^
//!                    v                                                |
//!   1. time goes on to max(last, at)                                  |
//!   2. due: waiters whose wait is over leave,   --- each end ---> who fits now is granted,
//!           leases whose ttl is over end                              |           now or in a later entry
//!   3. acquire, renew, release, revoke, detach  ----------------------'
//!
//!   by_id   id ------------.                    .---> claims, ttl, deadline, token or place
//!   lines   key: holders, -+--> slot --> Lease -+---> attachment: whose connection it came by
//!                queue    -|                    '---> wait: how many keys are not free for it yet
//!   live, waiting          |
//!      (deadline, number) -'             ended   id: how it ended, for 60 s
//! ```
//!
//! **One number.** Every grant, every end, every place taken or left in a queue takes the next
//! [`Revision`](ringfence_wire::Revision); a lease's token is the revision of its grant. So tokens are unique and
//! rise for ever, with no counter for each key. What changes nothing for others (renewals, repeats, refusals) takes
//! none.
//!
//! **The fence** of a key is its oldest live token or, where nobody holds it, the token that the next grant would
//! have. It cannot fall: a new holder's token is larger than all before, and an end takes a revision itself.
//!
//! **The queue** is exact and cheap for one reason, told and proved at `Line`: a waiter that fits a key never
//! ceases to, and a grant changes nothing for anybody else. Only an end lets waiters in, and only on the keys of
//! what ended; each waiter counts the keys that it does not fit yet, and is granted when that count comes to
//! nought.
//!
//! **An entry is short.** It costs what its commands touch, whatever the table holds: ends by time, and grants from the
//! queue, are put off to the next entry once this one has made some thousand. The leader proposes that at once
//! ([`LeaseTable::next_due_ms`]). Until then a lease that is past its time is live, and nobody overtakes a waiter that
//! is still to be granted.
//!
//! **Safety does not rest on time.** Deadlines only decide when an entry of the log ends a lease; until one does,
//! the lease is live, for reads as well. It is the token that keeps a late writer out.
//!
//! **Memory.** A lease says everything about itself, once: what finds it by id, by key or by deadline keeps only where
//! it lies, and a few bytes that spare most looks there (`Sorted`, `Ids`, `Deadlines`, `Lines`). A key that one lease
//! holds alone has no line of its own.
//!
//! **A snapshot** is written from a view of an instant ([`LeaseTable::freeze`]), on any thread, while entries are
//! applied. View and table have their memory in common; a change copies the few leases beside the one it is made to
//! (`Slots`), and of the ended ids only the latest (`Fifo`). [`LeaseTable::restore`] reads a snapshot from a
//! stream, and needs hardly more memory than the table it makes.
//!
//! No input makes this crate panic: commands need not come from the door, snapshots not from this program.

mod claims;
mod command;
#[cfg(test)]
mod costs;
mod deadlines;
mod ended;
mod event;
mod fifo;
mod ids;
#[cfg(test)]
mod laws;
mod lease;
mod limits;
mod line;
mod lines;
mod outcome;
mod puts;
mod slots;
mod sorted;
mod steps;
mod table;
mod tally;

pub use command::{Acquire, Attachment, Command};
pub use event::{Change, Event};
pub use outcome::{Outcome, Refusal};
pub use table::{Fence, FrozenTable, LeaseState, LeaseTable, RestoreError};
