//! Looking at the data of a stopped node, without changing it.
//!
//! Two nodes of a cluster that have applied the same entries are in the same state, and this says so: the checksum of
//! [`StateView`] is equal if and only if the tables are.

use std::collections::BTreeMap;
use std::path::Path;

use openraft::EntryPayload;
use ringfence_lease::{Command, LeaseTable};
use ringfence_wire::Revision;
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::batch::{Batch, DecodeError};
use crate::consensus::{Entry, LogId, Member, NodeId, Snapshot};
use crate::identity::{DataDir, DirError, Identity};
use crate::log_store::LogContents;
use crate::snapshot;

/// The data directory of a node that does not run; it cannot start while this is held.
pub struct StoppedNode {
    dir: DataDir,
    identity: Identity,
}

/// Why the data of a node cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The directory cannot be taken.
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
    /// The state at this entry cannot be told from what is there.
    #[error("the state at entry {asked} cannot be told: what is there goes from entry {first} to {last}")]
    OutOfRange {
        /// The entry that was asked for.
        asked: u64,
        /// The first whose state can be told.
        first: u64,
        /// The last.
        last: u64,
    },
    /// Nothing was ever committed, as far as this node knows.
    #[error("this node knows of no committed entry")]
    NothingCommitted,
}

/// Whose data it is.
#[derive(Clone, Debug, Serialize)]
pub struct Owner {
    /// The node's id.
    pub node_id: NodeId,
    /// Drawn when the directory was made.
    pub incarnation: Uuid,
    /// `None`: it belongs to no cluster yet.
    pub cluster_id: Option<Uuid>,
}

/// Term and index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The term of the leader that made it.
    pub term: u64,
    /// Its place in the log, from 0.
    pub index: u64,
}

/// The last vote of a node.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VoteView {
    /// The term.
    pub term: u64,
    /// For whom.
    pub voted_for: NodeId,
    /// Whether that node won, as far as this one knows.
    pub committed: bool,
}

/// A log.
#[derive(Clone, Debug, Serialize)]
pub struct LogView {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: Owner,
    /// `None`: it never voted.
    pub vote: Option<VoteView>,
    /// The entries up to here are in a snapshot only.
    pub purged: Option<Position>,
    /// The entries up to here are certainly committed. Later ones may be: this is written down with the next entry.
    pub committed: Option<Position>,
    /// The entries, oldest first.
    pub entries: Vec<EntryView>,
}

/// An entry of a log.
#[derive(Clone, Debug, Serialize)]
pub struct EntryView {
    /// Where it stands.
    #[serde(flatten)]
    pub position: Position,
    /// What it says.
    #[serde(flatten)]
    pub says: Says,
}

/// What an entry says.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Says {
    /// A leader has begun.
    Blank,
    /// Who belongs to the cluster.
    Membership {
        /// The ids of those who vote; two sets while it changes.
        voters: Vec<Vec<NodeId>>,
        /// All members.
        members: BTreeMap<NodeId, Member>,
    },
    /// The time, and commands.
    Commands {
        /// Milliseconds of the cluster's clock.
        at_ms: u64,
        /// In their order.
        commands: Vec<Command>,
    },
}

/// The state after an entry.
#[derive(Clone, Debug, Serialize)]
pub struct StateView {
    /// Whose it is.
    #[serde(flatten)]
    pub owner: Owner,
    /// The entry after which the state is this.
    #[serde(flatten)]
    pub position: Position,
    /// Milliseconds of the cluster's clock.
    pub at_ms: u64,
    /// Of the last change.
    pub revision: Revision,
    /// Leases that are granted and not ended.
    pub live_leases: usize,
    /// Leases in queues.
    pub waiters: usize,
    /// Ended leases that are still remembered.
    pub remembered: usize,
    /// SHA-256 of the table's snapshot, in hexadecimal: equal where the tables are.
    pub sha256: String,
}

/// The snapshot on disk.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotView {
    /// The state that it holds.
    #[serde(flatten)]
    pub state: StateView,
    /// The size of the table in it.
    pub bytes: usize,
    /// All members, when it was taken.
    pub members: BTreeMap<NodeId, Member>,
}

impl StoppedNode {
    /// Takes the data directory `data` of a node that does not run.
    pub fn open(data: &Path) -> Result<Self, InspectError> {
        let (dir, identity) = DataDir::open_existing(data)?;
        Ok(Self { dir, identity })
    }

    /// Its log.
    pub fn log(&self) -> Result<LogView, InspectError> {
        let contents = self.contents()?;
        let entries = contents.entries.into_iter().map(|(_, entry)| view(entry));
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

    /// Its snapshot; `None` if it has none.
    pub fn snapshot(&self) -> Result<Option<SnapshotView>, InspectError> {
        let Some(snapshot) = self.load()? else { return Ok(None) };
        let Some(position) = snapshot.meta.last_log_id.map(Position::of) else { return Ok(None) };
        let table = restore(&snapshot.snapshot)?;
        let members = snapshot.meta.last_membership.membership().nodes();
        Ok(Some(SnapshotView {
            state: self.state_of(&table, position),
            bytes: snapshot.snapshot.len(),
            members: members.map(|(id, member)| (*id, member.clone())).collect(),
        }))
    }

    /// Its state after entry `index`, committed or not; `None`: after the last entry that it knows to be committed.
    /// Made from the snapshot and the log, as a start of the node would.
    pub fn state(&self, index: Option<u64>) -> Result<StateView, InspectError> {
        let contents = self.contents()?;
        let snapshot = self.load()?;
        let taken = snapshot.as_ref().and_then(|snapshot| snapshot.meta.last_log_id);
        let committed = contents.committed.max(taken).map(|id| id.index());
        let asked = index.or(committed).ok_or(InspectError::NothingCommitted)?;
        if contents.purged > taken {
            let what = "it is missing, or older than the first entry of the log";
            return Err(InspectError::Snapshot(what.to_owned()));
        }
        // The log may reach back beyond the snapshot: then any of its states can be told.
        let (mut table, mut position) = match (snapshot, taken) {
            (Some(snapshot), Some(taken)) if contents.purged.is_some() || taken.index() <= asked => {
                (restore(&snapshot.snapshot)?, Some(Position::of(taken)))
            }
            _ => (LeaseTable::new(), None),
        };
        let first = position.map_or(0, |position| position.index);
        let last = contents.entries.back().map_or(first, |(_, entry)| entry.log_id.index().max(first));
        if !(first..=last).contains(&asked) {
            return Err(InspectError::OutOfRange { asked, first, last });
        }
        for (_, entry) in contents.entries {
            let at = Position::of(entry.log_id);
            if at.index > asked {
                break;
            }
            if position.is_some_and(|position| at.index <= position.index) {
                continue;
            }
            if let EntryPayload::Normal(batch) = entry.payload {
                let Batch { at_ms, commands } = Batch::decode(&batch).map_err(at_entry(at.index))?;
                table.apply(at_ms, commands, &mut Vec::new());
            }
            position = Some(at);
        }
        let position = position.ok_or(InspectError::NothingCommitted)?;
        Ok(self.state_of(&table, position))
    }

    fn owner(&self) -> Owner {
        let Identity { node_id, incarnation, cluster } = self.identity;
        Owner { node_id, incarnation, cluster_id: cluster }
    }

    fn state_of(&self, table: &LeaseTable, position: Position) -> StateView {
        let digest = Sha256::digest(table.snapshot());
        StateView {
            owner: self.owner(),
            position,
            at_ms: table.at_ms(),
            revision: table.revision(),
            live_leases: table.live(),
            waiters: table.waiters(),
            remembered: table.remembered(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    fn contents(&self) -> Result<LogContents, InspectError> {
        LogContents::read(&self.dir.path.join("log")).map_err(|error| InspectError::Log(error.to_string()))
    }

    fn load(&self) -> Result<Option<Snapshot>, InspectError> {
        snapshot::load(&self.dir.path).map_err(|error| InspectError::Snapshot(error.to_string()))
    }
}

impl Position {
    fn of(id: LogId) -> Self {
        Self { term: id.committed_leader_id().term, index: id.index() }
    }
}

fn restore(bytes: &[u8]) -> Result<LeaseTable, InspectError> {
    LeaseTable::restore(bytes).map_err(|error| InspectError::Snapshot(error.to_string()))
}

fn at_entry(index: u64) -> impl Fn(DecodeError) -> InspectError {
    move |error| InspectError::Entry { index, error: error.to_string() }
}

fn view(entry: Entry) -> Result<EntryView, InspectError> {
    let position = Position::of(entry.log_id);
    let says = match entry.payload {
        EntryPayload::Blank => Says::Blank,
        EntryPayload::Membership(membership) => Says::Membership {
            voters: membership
                .get_joint_config()
                .iter()
                .map(|voters| voters.iter().copied().collect())
                .collect(),
            members: membership.nodes().map(|(id, member)| (*id, member.clone())).collect(),
        },
        EntryPayload::Normal(batch) => {
            let Batch { at_ms, commands } = Batch::decode(&batch).map_err(at_entry(position.index))?;
            Says::Commands { at_ms, commands }
        }
    };
    Ok(EntryView { position, says })
}
