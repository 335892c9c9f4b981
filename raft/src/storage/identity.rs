//! The owner of a data directory.
//!
//! ```text
//! LOCK        locked while a process uses the directory
//! NODE        format, node id, incarnation, cluster, whether it founds that, and its starts: synced before anything else
//! DIVERGED    why the state here is not that of the cluster, if it is not: no node starts with it
//! log/        the write-ahead log
//! snapshots/  the state after some entries of the log
//! ```
//! The incarnation is drawn when the directory is created. It distinguishes a directory that was created again under an
//! old id: that node has forgotten what it voted and acknowledged, and must not count as the one that the cluster knows.
//! The [`Starts`] distinguish a directory from copies of it, which share its incarnation.

use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(test)]
use ringfence_wal::disk::System;
use ringfence_wal::disk::{Disk, File, Mode};
use uuid::Uuid;

use crate::consensus::NodeId;
use crate::random::Random;
use crate::storage::snapshots::store::Storage;
use crate::storage::starts::Starts;

const FORMAT: &str = "ringfence data directory, format 1";
const NODE: &str = "NODE";
const LOCK: &str = "LOCK";
const DIVERGED: &str = "DIVERGED";
const LOG: &str = "log";

/// The contents of `NODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node_id: NodeId,
    pub(crate) incarnation: Uuid,
    /// Absent until the node belongs to a cluster.
    pub(crate) cluster: Option<Uuid>,
    /// Whether this node creates the cluster's first membership.
    pub(crate) founder: bool,
    /// The starts of this data directory.
    pub(crate) starts: Starts,
}

/// A data directory in use by this process.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) storage: Arc<dyn Storage>,
    _lock: Box<dyn File>,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Another process holds it.
    #[error("{0} is in use by another process; stop that one, or give another directory with --data")]
    InUse(PathBuf),
    /// It belongs to another node.
    #[error(
        "{path} belongs to node {found}, not to node {expected}; start it with --id {found}, or give node {expected} a directory of its own with --data"
    )]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The node that was to be started.
        expected: NodeId,
        /// The node that it belongs to.
        found: NodeId,
    },
    /// It was written by another version.
    #[error("{path} was written by another version of ringfence (\"{found}\"); start it with that version")]
    OtherVersion {
        /// The directory.
        path: PathBuf,
        /// Its format, as it names it.
        found: String,
    },
    /// `NODE` cannot be understood.
    #[error(
        "{0} is damaged: it does not say which node the directory belongs to; remove this node from the cluster, empty the directory, and add it again"
    )]
    Damaged(PathBuf),
    /// There are files, but no `NODE`.
    #[error(
        "{0} is not empty, and not a data directory of ringfence; give an empty or a new one with --data"
    )]
    Foreign(PathBuf),
    /// The state in it is not that of the cluster.
    #[error("{why}. So says {path}")]
    Diverged {
        /// Where that is recorded.
        path: PathBuf,
        /// How it was found.
        why: String,
    },
    /// It is to be looked at, and is none.
    #[error("this is not the data directory of a node: {0} is not there")]
    Missing(PathBuf),
    /// The file system failed.
    #[error("{path}: {error}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
}

impl DataDir {
    /// Takes `path` for the node `node_id` on this machine: created if it is missing, refused if it is another node's.
    #[cfg(test)]
    pub(crate) fn open(path: &Path, node_id: NodeId) -> Result<(Self, Identity), DirError> {
        Self::open_on(Arc::new(System), path, node_id, &Random::system())
    }

    /// Does the same on any storage. The incarnation of a new directory is drawn from `random`.
    pub(crate) fn open_on(
        storage: Arc<dyn Storage>,
        path: &Path,
        node_id: NodeId,
        random: &Random,
    ) -> Result<(Self, Identity), DirError> {
        let disk = storage.disk();
        disk.create_dir(path).map_err(DirError::io(path))?;
        let is_ours = disk.exists(&path.join(NODE)).map_err(DirError::io(path))?;
        if !is_ours && holds_other_files(&*disk, path).map_err(DirError::io(path))? {
            return Err(DirError::Foreign(path.to_owned()));
        }
        let dir = Self::lock(storage, path, Mode::Create)?;
        let known = dir.read()?;
        let is_new = known.is_none();
        let starts = Starts::default();
        let create = || Identity { node_id, incarnation: random.id(), cluster: None, founder: false, starts };
        let identity = known.unwrap_or_else(create);
        if identity.node_id != node_id {
            let found = identity.node_id;
            return Err(DirError::OtherNode { path: path.to_owned(), expected: node_id, found });
        }
        if is_new {
            dir.write(&identity).map_err(DirError::io(&path.join(NODE)))?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                dir.disk.sync_dir(parent).map_err(DirError::io(parent))?;
            }
        }
        Ok((dir, identity))
    }

    /// Takes an existing data directory, of any node, to look at it.
    pub(crate) fn open_existing(
        storage: Arc<dyn Storage>,
        path: &Path,
    ) -> Result<(Self, Identity), DirError> {
        let dir = Self::lock(storage, path, Mode::Read)?;
        let identity = dir.read()?.ok_or_else(|| DirError::Missing(path.join(NODE)))?;
        Ok((dir, identity))
    }

    /// Adds this process to the starts of the directory, with a number from `random`. To be called before it meets another node,
    /// and once nothing else keeps it from starting.
    pub(crate) fn start(&self, identity: &mut Identity, random: &Random) -> Result<(), DirError> {
        identity.starts.add(random.id().as_u64_pair().1);
        self.write(identity).map_err(DirError::io(&self.path.join(NODE)))
    }

    /// Keeps other processes out of the directory `path` for as long as this lives.
    fn lock(storage: Arc<dyn Storage>, path: &Path, mode: Mode) -> Result<Self, DirError> {
        let file = path.join(LOCK);
        let disk = storage.disk();
        let lock = disk.open(&file, mode).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DirError::Missing(file.clone()),
            _ => DirError::io(&file)(error),
        })?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), disk, storage, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DirError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(DirError::io(&file)(error)),
        }
    }

    /// The directory of its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// Whether there is a log. What cannot be read is not gone: opening it says what is wrong.
    pub(crate) fn has_log(&self) -> bool {
        match self.disk.list(&self.log()) {
            Ok(names) => !names.is_empty(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Replaces `NODE`; when this returns, it is on disk.
    pub(crate) fn write(&self, identity: &Identity) -> io::Result<()> {
        let cluster = identity.cluster.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let body = format!(
            "{FORMAT}\nnode {}\nincarnation {}\ncluster {cluster}\nfounder {}\nstarts {}\n",
            identity.node_id, identity.incarnation, identity.founder, identity.starts
        );
        let text = format!("{body}checksum {:08x}\n", crc32c::crc32c(body.as_bytes()));
        let beside = self.path.join("NODE.new");
        let file = self.disk.open(&beside, Mode::Create)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync_all()?;
        self.disk.rename(&beside, &self.path.join(NODE))?;
        self.disk.sync_dir(&self.path)
    }

    /// Records that the state here is not that of the cluster, and `why`: a restart must not go on from it.
    pub(crate) fn condemn(&self, why: &str) -> io::Result<()> {
        let file = self.disk.open(&self.path.join(DIVERGED), Mode::Create)?;
        file.write_at(why.as_bytes(), 0)?;
        file.sync_all()?;
        self.disk.sync_dir(&self.path)
    }

    /// An error if the state here is not that of the cluster.
    pub(crate) fn check_condemned(&self) -> Result<(), DirError> {
        let path = self.path.join(DIVERGED);
        match self.disk.read(&path) {
            Ok(why) => Err(DirError::Diverged { why: String::from_utf8_lossy(&why).into_owned(), path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(DirError::Io { path, error }),
        }
    }

    /// Reads `NODE`; `None` if it is missing.
    fn read(&self) -> Result<Option<Identity>, DirError> {
        let path = self.path.join(NODE);
        match self.disk.read(&path) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => self.parse(&text).map(Some),
                Err(_) => Err(DirError::Damaged(path)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DirError::Io { path, error }),
        }
    }

    fn parse(&self, text: &str) -> Result<Identity, DirError> {
        let damaged = || DirError::Damaged(self.path.join(NODE));
        let mut lines = text.lines();
        match lines.next() {
            Some(FORMAT) => {}
            Some(other) if other.starts_with("ringfence data directory, format ") => {
                return Err(DirError::OtherVersion { path: self.path.clone(), found: other.to_owned() });
            }
            _ => return Err(damaged()),
        }
        let (body, checksum) = text.trim_end().rsplit_once("checksum ").ok_or_else(damaged)?;
        if format!("{:08x}", crc32c::crc32c(body.as_bytes())) != checksum {
            return Err(damaged());
        }
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let parsed = (|| {
            let node_id = value("node")?.parse().ok()?;
            let incarnation = value("incarnation")?.parse().ok()?;
            let cluster = match value("cluster")? {
                "none" => None,
                id => Some(id.parse().ok()?),
            };
            let founder = value("founder")?.parse().ok()?;
            // Builds that did not count starts read no further, and wrote no such line.
            let starts = value("starts").map_or(Some(Starts::default()), |line| line.parse().ok())?;
            Some(Identity { node_id, incarnation, cluster, founder, starts })
        })();
        parsed.ok_or_else(damaged)
    }
}

impl DirError {
    /// For `map_err`.
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}

/// Whether there is anything that a new data directory would not have. A crash while `NODE` was first written leaves at
/// most `NODE.new`; a file system's own directory is no reason to refuse its root.
fn holds_other_files(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    let names = disk.list(path)?;
    Ok(names.iter().any(|name| !["NODE.new", LOCK, "lost+found"].iter().any(|known| name == *known)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_keeps_its_identity() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("made");
        let (dir, mut identity) = DataDir::open(&path, 3).unwrap();
        dir.start(&mut identity, &Random::system()).unwrap();
        identity.cluster = Some(Uuid::from_u128(5));
        identity.founder = true;
        dir.write(&identity).unwrap();
        drop(dir);
        let (dir, mut again) = DataDir::open(&path, 3).unwrap();
        assert_eq!(again, identity);
        dir.start(&mut again, &Random::system()).unwrap();
        drop(dir);
        let (_, again) = DataDir::open(&path, 3).unwrap();
        assert!(again.starts.include(identity.starts.newest().unwrap()));
        assert_eq!(again.starts.newest().unwrap().count, 2);
    }

    /// The directory of a build that did not count starts. Such a build ignores the line, too: it checks the checksum, and reads
    /// four lines.
    #[test]
    fn a_directory_without_starts_counts_from_the_first() {
        let temp = tempfile::tempdir().unwrap();
        drop(DataDir::open(temp.path(), 1).unwrap());
        let node = temp.path().join(NODE);
        let text = fs::read_to_string(&node).unwrap();
        let body = text.split("starts ").next().unwrap();
        fs::write(&node, format!("{body}checksum {:08x}\n", crc32c::crc32c(body.as_bytes()))).unwrap();
        let (dir, mut identity) = DataDir::open(temp.path(), 1).unwrap();
        assert_eq!(identity.starts, Starts::default());
        dir.start(&mut identity, &Random::system()).unwrap();
        assert_eq!(identity.starts.newest().unwrap().count, 1);
    }

    #[test]
    fn a_directory_that_is_not_this_nodes_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path();
        let (held, _) = DataDir::open(path, 1).unwrap();
        assert!(matches!(DataDir::open(path, 1), Err(DirError::InUse(_))));
        drop(held);
        assert!(matches!(DataDir::open(path, 2), Err(DirError::OtherNode { found: 1, expected: 2, .. })));
        let node = path.join(NODE);
        let text = fs::read_to_string(&node).unwrap();
        fs::write(&node, text.replace("format 1", "format 2")).unwrap();
        assert!(matches!(DataDir::open(path, 1), Err(DirError::OtherVersion { .. })));
        fs::remove_file(&node).unwrap();
        fs::create_dir(path.join("log")).unwrap();
        assert!(matches!(DataDir::open(path, 1), Err(DirError::Foreign(_))));
    }

    #[test]
    fn every_flipped_bit_of_the_identity_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let node = temp.path().join(NODE);
        drop(DataDir::open(temp.path(), 1).unwrap());
        let whole = fs::read(&node).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&node, flipped).unwrap();
            // The last line break carries nothing.
            if bit / 8 + 1 < whole.len() {
                assert!(DataDir::open(temp.path(), 1).is_err(), "bit {bit}");
            }
        }
    }
}
