//! The replicated lease table: Raft behind one [`Handle`].
//!
//! ```text
//!   Handle::propose ──▶ proposer ──▶ openraft ──▶ log_store ──▶ ringfence-wal ──▶ disk
//!        │ (follower)   packs and      │  ▲
//!        ▼              stamps         ▼  │ quorum
//!      peer ◀─────────────────────── peer (network) ◀──▶ the other nodes
//!                                      │
//!   Handle::view ◀── applied ◀── state_machine (apply) ──▶ snapshots ──▶ disk
//!   Handle::wait_for ◀── waits ◀──┤
//!   Handle::changes ◀── changes ◀─┤ dirty keys, for the mirror
//!   Handle::history ◀── history ◀─┘ recent changes, for watches
//! ```
//!
//! What it guarantees, and where:
//!
//! - an outcome is given only after a quorum has its entry on disk (`log_store`; the flusher of `ringfence-wal`);
//! - the time that stamps an entry never runs faster than real time, and no stamp outlives its leader's term (`clock`,
//!   `leading`, `proposer`);
//! - *certainly not done* and *maybe done* are kept apart on every path ([`Unanswered`], `proposer`, `peer::call`);
//! - no program gets a command that it cannot read (`gate`);
//! - a linearizable read was confirmed by a quorum after it arrived (`reads`, `confirm`);
//! - what is purged from the log is in two snapshots on disk, and a damaged one is never used (`compaction`, `snapshots`);
//! - a leader that gets on with nothing, though the others could, does not lead for long (`fitness`);
//! - how much of the log is in memory depends on no other node (`log_store`, `peer::append`);
//! - a node that lost its data never counts as the member that it was, nor a removed node as the one that has its id now
//!   (`identity`, `founding`, `peer::handshake`, `peer::call`).
//!
//! [`StoppedNode`] reads what all this left on a disk (`inspect`).
//!
//! Only this crate knows openraft: none of its types leave the crate, and none of them defines a byte on disk or between
//! nodes (`record`, `peer::message`).
//!
//! All tasks of a node run on one single-threaded tokio runtime, so every step here is short. Callers of [`Handle`] may be on
//! other threads, and hold the lock of the applied state as briefly. The flusher has a thread of its own, and so has each
//! reader or writer of a snapshot.
//!
//! A simulator can replace what a node gets from outside: the network ([`Settings::transport`]), the disk
//! ([`Settings::storage`]), random numbers ([`Settings::random`]), the clock that a leader counts by besides tokio's
//! ([`Settings::quartz`]) and the wall clock, to which only revisions are raised ([`Settings::wall_clock`]). All other time is
//! tokio's. Where several things are ready at once, the
//! order is fixed. `clippy.toml` bans the ways around these seams.

// Tests have real ids and time, unless they simulate them.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(test)]
extern crate self as ringfence_raft;

mod applied;
mod batching;
mod condemned;
mod consensus;
mod divergence;
mod fitness;
mod gate;
mod handle;
mod inspect;
mod lead;
mod lines;
mod measure;
mod members;
mod node;
mod peer;
mod propose;
mod random;
mod reads;
mod replica;
mod reply;
mod service;
mod status;
mod storage;
#[cfg(test)]
mod suite;
mod tasks;
mod time;
mod unanswered;

pub use applied::changes::{Changed, Changes};
pub use applied::history::History;
pub use applied::lease_wait::LeaseWait;
pub use applied::table::Progress;
pub use applied::waits::Settled;
pub use consensus::{Member, NodeId};
pub use gate::Since;
pub use handle::Handle;
pub use inspect::{
    EntryView, EventView, EventsView, InspectError, LogView, OwnerView, Position, Says, SnapshotView,
    SnapshotsView, StateView, StoppedNode, VoteView,
};
pub use lines::Lines;
pub use measure::METRICS;
pub use members::founding::JoinError;
pub use node::{MAX_LEASE_BYTES, Node, SNAPSHOT_AFTER_BYTES, Settings, StartError};
pub use peer::{ByteReader, ByteWriter, Certificate, Connection, Tcp, Tls, Transport, is_of_node};
pub use propose::asker::Asker;
pub use random::Random;
pub use replica::MirrorView;
pub use ringfence_wal::disk::System;
pub use status::Unfinished;
pub use storage::identity::DirError;
pub use storage::snapshots::store::{SnapshotReader, SnapshotStore, SnapshotWriter, Storage};
pub use time::elapsed::Quartz;
pub use time::start::Elders;
pub use time::wall::WallClock;
pub use unanswered::{MembersError, Stuck, Unanswered};
