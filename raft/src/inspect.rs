//! Inspection of a stopped node's data, without changing it.
//!
//! Two nodes of a cluster that have applied the same entries are in the same state: the checksums of their [`StateView`]s
//! are equal if and only if the tables are. [`EventsView`] lists the changes that led there, as far back as the log goes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use openraft::EntryPayload;
use ringfence_lease::{Event, LeaseTable, SUPPORTED};
use ringfence_wal::disk::System;
use ringfence_wire::RulesRange;

use crate::consensus::{Entry, Member, Membership, NodeId};
use crate::propose::batch::{Batch, DecodeError};
use crate::storage::identity::{DataDir, DirError, Identity};
use crate::storage::log_contents::LogContents;
use crate::storage::snapshots::generation::Head;
use crate::storage::snapshots::sled_store::SledStore;
use crate::storage::snapshots::store::{SnapshotStore, Storage};
use crate::storage::snapshots::{self, indexes, name_of};

mod events;
mod survivor;
mod views;

pub use events::{EventView, EventsView};
pub use views::{
    EntryView, LogView, OwnerView, Position, Says, SnapshotView, SnapshotsView, StateView, VoteView,
};

/// The data directory of a stopped node, which cannot start while this exists.
pub struct StoppedNode {
    dir: DataDir,
    snapshots: Arc<dyn SnapshotStore>,
    identity: Identity,
    rules: RulesRange,
}

/// Why a node's data cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The directory cannot be opened.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The log cannot be read.
    #[error("{0}")]
    Log(String),
    /// An entry cannot be read.
    #[error("entry {index}: {error}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong with it.
        error: String,
    },
    /// The snapshot cannot be read.
    #[error("the snapshot: {0}")]
    Snapshot(String),
    /// The data does not reach to this entry.
    #[error("the state at entry {asked} cannot be told: the data here covers entries {first} to {last}")]
    OutOfRange {
        /// The entry that was asked for.
        asked: u64,
        /// The first whose state is known.
        first: u64,
        /// The last.
        last: u64,
    },
    /// As far as this node knows, nothing was ever committed.
    #[error("this node knows of no committed entry")]
    NothingCommitted,
}

impl StoppedNode {
    /// Opens the data directory of a stopped node.
    pub fn open(data: &Path) -> Result<Self, InspectError> {
        let (dir, identity) = DataDir::open_existing(Arc::new(System), data)?;
        // Copies for reading go to the system's temporary directory, so that nothing here changes.
        let snapshots = SledStore::existing(&data.join(snapshots::DIR), &std::env::temp_dir());
        Ok(Self { dir, snapshots: Arc::new(snapshots), identity, rules: SUPPORTED })
    }

    /// Takes a data directory on any storage, as a program that supports these rules.
    pub fn open_on(storage: Arc<dyn Storage>, data: &Path, rules: RulesRange) -> Result<Self, InspectError> {
        let failed = |error: io::Error| InspectError::Snapshot(error.to_string());
        let snapshots = storage.snapshots(&data.join(snapshots::DIR)).map_err(failed)?;
        let (dir, identity) = DataDir::open_existing(storage, data)?;
        Ok(Self { dir, snapshots, identity, rules })
    }

    /// Its log.
    pub fn log(&self) -> Result<LogView, InspectError> {
        let contents = self.contents()?;
        let entries = contents.entries.into_iter().map(|(_, entry)| view(entry, self.rules));
        Ok(LogView {
            owner: self.owner(),
            vote: contents.vote.map(|vote| VoteView {
                term: vote.leader_id.term,
                voted_for: vote.leader_id.voted_for,
                committed: vote.committed,
            }),
            purged: contents.purged.map(Position::of),
            committed: contents.committed.map(Position::of),
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Its snapshots.
    pub fn snapshots(&self) -> Result<SnapshotsView, InspectError> {
        let mut view = SnapshotsView { snapshots: Vec::new(), unusable: Vec::new() };
        for index in self.generations()? {
            match self.read(index) {
                Ok((head, table)) => view.snapshots.push(SnapshotView {
                    state: self.state_of(&table, Position { term: head.term(), index }),
                    bytes: head.bytes,
                    members: members(head.meta.last_membership.membership()),
                }),
                Err(error) => view.unusable.push(error),
            }
        }
        Ok(view)
    }

    /// Its state after entry `index`, committed or not; `None`: after the last entry it knows to be committed. Restored from
    /// snapshot and log, as at a start of the node.
    pub fn state(&self, index: Option<u64>) -> Result<StateView, InspectError> {
        let replay = self.replay(index)?;
        let base = self.base(replay.generations.iter().copied(), &replay)?;
        let (position, table) = replay.run(base, |_, _, _| {})?;
        Ok(self.state_of(&table, position))
    }

    /// Everything needed to replay up to entry `index`, or to the last that is known to be committed.
    fn replay(&self, index: Option<u64>) -> Result<Replay, InspectError> {
        let contents = self.contents()?;
        let generations = self.generations()?;
        let newest = generations.first().copied();
        let committed = contents.committed.map(|id| id.index()).max(newest);
        let asked = index.or(committed).ok_or(InspectError::NothingCommitted)?;
        let begins = contents.purged.map(|id| id.index());
        let last_entry = contents.entries.back().map(|(_, entry)| entry.log_id.index());
        let (first, last) = (begins.unwrap_or(0), last_entry.max(newest).unwrap_or(0));
        if !(first..=last).contains(&asked) {
            return Err(InspectError::OutOfRange { asked, first, last });
        }
        let entries = contents.entries.into_iter().map(|(_, entry)| entry).collect();
        Ok(Replay { asked, begins, generations, entries, rules: self.rules })
    }

    fn owner(&self) -> OwnerView {
        let Identity { node_id, incarnation, cluster, .. } = self.identity;
        OwnerView { node_id, incarnation, cluster_id: cluster }
    }

    fn state_of(&self, table: &LeaseTable, position: Position) -> StateView {
        StateView {
            owner: self.owner(),
            position,
            rules: table.rules(),
            at_ms: table.at_ms(),
            first_revision: table.first_revision(),
            revision: table.revision(),
            live_leases: table.live(),
            waiters: table.waiters(),
            remembered: table.remembered(),
            blake3: blake3::hash(&table.snapshot()).to_hex().to_string(),
        }
    }

    fn contents(&self) -> Result<LogContents, InspectError> {
        LogContents::read(&self.dir).map_err(|error| InspectError::Log(error.to_string()))
    }

    /// The indexes of its snapshots, the newest first.
    fn generations(&self) -> Result<Vec<u64>, InspectError> {
        indexes(&*self.snapshots).map_err(|error| InspectError::Snapshot(error.to_string()))
    }

    /// Reads a snapshot; the error says which.
    fn read(&self, index: u64) -> Result<(Head, LeaseTable), String> {
        let path = self.snapshots.path(&name_of(index));
        snapshots::read(&*self.snapshots, index, self.rules)
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The first usable of these snapshots that the replay can continue from; `None`: the log has everything.
    fn base(
        &self,
        generations: impl Iterator<Item = u64>,
        replay: &Replay,
    ) -> Result<Option<(Position, LeaseTable)>, InspectError> {
        let mut reasons = String::new();
        for index in generations.filter(|index| *index <= replay.asked && Some(*index) >= replay.begins) {
            match self.read(index) {
                Ok((head, table)) => return Ok(Some((Position { term: head.term(), index }, table))),
                Err(error) => reasons += &format!("; {error}"),
            }
        }
        match replay.begins {
            None => Ok(None),
            Some(begins) => Err(InspectError::Snapshot(format!(
                "there is none to go on from after entry {begins}, where the log begins{reasons}"
            ))),
        }
    }
}

/// What a node has on disk, to be replayed up to an entry.
struct Replay {
    asked: u64,
    /// The entry after which the log begins; `None`: it is complete.
    begins: Option<u64>,
    /// The snapshots, the newest first.
    generations: Vec<u64>,
    entries: Vec<Entry>,
    rules: RulesRange,
}

impl Replay {
    /// Continues from `base`, and calls `each` with the changes of each entry: its position, and the table after it.
    fn run(
        self,
        base: Option<(Position, LeaseTable)>,
        mut each: impl FnMut(Position, &LeaseTable, Vec<Event>),
    ) -> Result<(Position, LeaseTable), InspectError> {
        let mut position = base.as_ref().map(|(position, _)| *position);
        let mut table = base.map(|(_, table)| table).unwrap_or_default();
        for entry in self.entries {
            let at = Position::of(entry.log_id);
            if at.index > self.asked {
                break;
            }
            if position.is_some_and(|position| at.index <= position.index) {
                continue;
            }
            if let EntryPayload::Normal(batch) = entry.payload {
                let batch = Batch::decode(&batch, self.rules).map_err(at_entry(at.index))?;
                let mut events = Vec::new();
                batch.apply(&mut table, &mut events);
                each(at, &table, events);
            }
            position = Some(at);
        }
        let position = position.ok_or(InspectError::NothingCommitted)?;
        if position.index < self.asked {
            // A snapshot was sent to this node, and it was stopped before its log began anew.
            let (asked, last) = (self.asked, position.index);
            return Err(InspectError::OutOfRange { asked, first: self.begins.unwrap_or(0), last });
        }
        Ok((position, table))
    }
}

fn members(membership: &Membership) -> BTreeMap<NodeId, Member> {
    membership.nodes().map(|(id, member)| (*id, member.clone())).collect()
}

fn at_entry(index: u64) -> impl Fn(DecodeError) -> InspectError {
    move |error| InspectError::Entry { index, error: error.to_string() }
}

fn view(entry: Entry, supported: RulesRange) -> Result<EntryView, InspectError> {
    let position = Position::of(entry.log_id);
    let says = match entry.payload {
        EntryPayload::Blank => Says::Blank,
        EntryPayload::Membership(membership) => Says::Membership {
            voters: membership
                .get_joint_config()
                .iter()
                .map(|voters| voters.iter().copied().collect())
                .collect(),
            members: members(&membership),
        },
        EntryPayload::Normal(batch) => {
            let batch = Batch::decode(&batch, supported).map_err(at_entry(position.index))?;
            let Batch { rules, at_ms, requests, .. } = batch;
            Says::Commands { rules, at_ms, requests }
        }
    };
    Ok(EntryView { position, says })
}
