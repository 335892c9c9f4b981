//! Copies of a disk, as backups and images of volumes are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::contents::Contents;
use super::snapshots::Snapshot;
use super::{MemoryDisk, State};

/// All that was on a disk at one time.
#[derive(Clone)]
pub struct Copy {
    files: Vec<Contents>,
    names: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    snapshots: BTreeMap<String, Snapshot>,
}

impl MemoryDisk {
    /// Copies all that a reader sees now.
    pub fn copy(&self) -> Copy {
        let state = self.lock();
        let State { files, names, dirs, snapshots, .. } = &*state;
        let mut files = files.clone();
        files.iter_mut().for_each(|file| file.unsynced.clear());
        Copy { files, names: names.clone(), dirs: dirs.clone(), snapshots: snapshots.clone() }
    }

    /// Has the contents of a copy, once the process that used the disk has ended.
    pub fn turn_back(&self, copy: &Copy) {
        let Copy { files, names, dirs, snapshots } = copy.clone();
        let mut state = self.lock();
        (state.files, state.dirs, state.snapshots) = (files, dirs, snapshots);
        (state.names, state.durable_names) = (names.clone(), names);
        state.changes.clear();
    }
}
