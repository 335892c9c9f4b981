//! The agreement of Ringfence: the lease table, replicated by Raft, behind one [`Handle`].
//!
//! ```text
//!   Handle::propose ──▶ proposer ──▶ openraft ──▶ log_store ──▶ ringfence-wal ──▶ disk
//!        │ (follower)   packs and      │  ▲
//!        ▼              stamps         ▼  │ quorum
//!      peer ◀─────────────────────── peer (network) ◀──▶ the other nodes
//!                                      │
//!   Handle::view ◀── applied ◀── state_machine (apply) ──▶ snapshots ──▶ disk
//!   Handle::wait_for ◀── waits ◀──┤
//!   Handle::changes ◀── changes ◀─┤ for the mirror: which keys to look at
//!   Handle::history ◀── history ◀─┘ for those who watch: what has changed lately
//! ```
//!
//! What it guarantees, and where:
//!
//! - an outcome is given only after a quorum has its entry on disk (`log_store`; the flusher of `ringfence-wal`);
//! - the time that an entry is stamped with never runs faster than real time, and no stamp outlives its leader's term
//!   (`clock`, `leading`, `proposer`);
//! - *certainly not done* and *maybe done* are kept apart on every path ([`Unanswered`], `proposer`, `peer::call`);
//! - a read that claims to be linearizable was confirmed by a quorum after it arrived (`reads`, `confirm`);
//! - what goes from the log stands in two snapshots on disk, and a damaged one is never used (`compaction`, `snapshots`);
//! - a node that lost its data never counts as the member that it was, nor a node that was removed as the one that has its
//!   id now (`identity`, `founding`, `peer::hello`, `peer::call`).
//!
//! [`StoppedNode`] reads what all this left on a disk (`inspect`).
//!
//! This is the only room that knows openraft; none of its types leave it, and none of them is what stands on disk or
//! goes over the wire (`record`, `peer::message`). All tasks of a node run on one single-threaded tokio runtime, so every
//! step here is short; callers of [`Handle`] may be on other threads, and hold the lock of the applied state as briefly; the flusher has a thread of its own, and so has whatever reads or writes a snapshot.

mod applied;
mod consensus;
mod handle;
mod hung_disk;
mod inspect;
mod lanes;
mod members;
mod node;
mod peer;
mod propose;
mod reads;
mod reply;
mod status;
mod storage;
#[cfg(test)]
mod suite;
mod time;

pub use applied::changes::{Changed, Changes};
pub use applied::history::History;
pub use applied::table::Progress;
pub use applied::waits::{LeaseWait, Settled};
pub use consensus::{Member, NodeId};
pub use handle::{Handle, Mirrored, Unanswered, Unfinished};
pub use inspect::{
    ChangeName, ChangedKey, EntryView, EventView, EventsView, InspectError, LogView, Owner, Position, Says,
    SnapshotView, SnapshotsView, StateView, StoppedNode, VoteView,
};
pub use members::MembersError;
pub use members::founding::JoinError;
pub use node::{Node, SNAPSHOT_AFTER_BYTES, Settings, StartError};
pub use storage::identity::DirError;
pub use time::start::Elders;
