//! Who a data directory belongs to.
//!
//! ```text
//! LOCK       held while a process uses the directory
//! NODE       format, node id, incarnation, cluster, and whether it founds that: written and synced before the node's first vote
//! log/       the write-ahead log
//! snapshots/  the state, as it was at some entries of the log
//! ```
//! The incarnation is drawn when the directory is made. A directory made anew under an old id is told apart by it: its
//! node has forgotten what it voted and acknowledged, and must not count as the one that the cluster knows.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::consensus::NodeId;

const FORMAT: &str = "ringfence data directory, format 1";
const NODE: &str = "NODE";
const LOCK: &str = "LOCK";

/// What stands in `NODE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node_id: NodeId,
    pub(crate) incarnation: Uuid,
    /// Absent until the node belongs to a cluster.
    pub(crate) cluster: Option<Uuid>,
    /// Whether it is this node that makes the cluster's first membership.
    pub(crate) founder: bool,
}

/// A data directory in use by this process.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub(crate) path: PathBuf,
    _lock: File,
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
        "{0} is damaged: it does not say which node the directory belongs to; bring it back from a copy, or remove this node from the cluster and add it anew"
    )]
    Damaged(PathBuf),
    /// There are files, but no `NODE`.
    #[error(
        "{0} is not empty, and not a data directory of ringfence; give an empty or a new one with --data"
    )]
    Foreign(PathBuf),
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
    #[cfg(test)]
    pub(crate) fn open(path: &Path, node_id: NodeId) -> Result<(Self, Identity), DirError> {
        Self::open_with(path, node_id, Uuid::new_v4)
    }

    /// Takes `path` for the node `node_id`: made if it is not there, refused if it is not this node's. `new_id` draws the
    /// incarnation of a new one.
    pub(crate) fn open_with(
        path: &Path,
        node_id: NodeId,
        new_id: fn() -> Uuid,
    ) -> Result<(Self, Identity), DirError> {
        let io_at = |path: &Path| {
            let path = path.to_owned();
            move |error| DirError::Io { path, error }
        };
        fs::create_dir_all(path).map_err(io_at(path))?;
        let is_ours = path.join(NODE).exists();
        if !is_ours && holds_other_files(path).map_err(io_at(path))? {
            return Err(DirError::Foreign(path.to_owned()));
        }
        let lock_path = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io_at(&lock_path))?;
        take(&lock, path)?;
        let dir = Self { path: path.to_owned(), _lock: lock };
        let identity = match fs::read_to_string(path.join(NODE)) {
            Ok(text) => dir.parse(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let identity = Identity { node_id, incarnation: new_id(), cluster: None, founder: false };
                dir.write(&identity).map_err(io_at(&path.join(NODE)))?;
                if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    File::open(parent).and_then(|parent| parent.sync_all()).map_err(io_at(parent))?;
                }
                identity
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(DirError::Damaged(path.join(NODE)));
            }
            Err(error) => return Err(DirError::Io { path: path.join(NODE), error }),
        };
        if identity.node_id != node_id {
            return Err(DirError::OtherNode {
                path: path.to_owned(),
                expected: node_id,
                found: identity.node_id,
            });
        }
        Ok((dir, identity))
    }

    /// Takes an existing data directory, whosever it is, to look at it.
    pub(crate) fn open_existing(path: &Path) -> Result<(Self, Identity), DirError> {
        let at = |file: &str| {
            let path = path.join(file);
            move |error: io::Error| match error.kind() {
                io::ErrorKind::NotFound => DirError::Missing(path),
                io::ErrorKind::InvalidData => DirError::Damaged(path),
                _ => DirError::Io { path, error },
            }
        };
        let lock = File::open(path.join(LOCK)).map_err(at(LOCK))?;
        take(&lock, path)?;
        let dir = Self { path: path.to_owned(), _lock: lock };
        let identity = dir.parse(&fs::read_to_string(path.join(NODE)).map_err(at(NODE))?)?;
        Ok((dir, identity))
    }

    /// Replaces `NODE`; when this returns, it is on disk.
    pub(crate) fn write(&self, identity: &Identity) -> io::Result<()> {
        let cluster = identity.cluster.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let body = format!(
            "{FORMAT}\nnode {}\nincarnation {}\ncluster {cluster}\nfounder {}\n",
            identity.node_id, identity.incarnation, identity.founder
        );
        let text = format!("{body}checksum {:08x}\n", crc32c::crc32c(body.as_bytes()));
        let beside = self.path.join("NODE.new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, self.path.join(NODE))?;
        File::open(&self.path)?.sync_all()
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
            Some(Identity { node_id, incarnation, cluster, founder })
        })();
        parsed.ok_or_else(damaged)
    }
}

/// Keeps other processes out of the directory `path` as long as its lock file is open.
fn take(lock: &File, path: &Path) -> Result<(), DirError> {
    match flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DirError::InUse(path.to_owned())),
        Err(error) => Err(DirError::Io { path: path.join(LOCK), error: error.into() }),
    }
}

/// Whether there is anything that a fresh data directory would not have. A crash while `NODE` was written first leaves
/// no more than its beginning; a file system's own folder is no reason to refuse its root.
fn holds_other_files(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !["NODE.new", LOCK, "lost+found"].iter().any(|known| name == *known) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_identity() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("made");
        let (dir, mut identity) = DataDir::open(&path, 3).unwrap();
        identity.cluster = Some(Uuid::from_u128(5));
        identity.founder = true;
        dir.write(&identity).unwrap();
        drop(dir);
        assert_eq!(DataDir::open(&path, 3).unwrap().1, identity);
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
