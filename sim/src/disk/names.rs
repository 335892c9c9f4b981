//! Changes of the names of files, which last once their directory is synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Clone)]
pub(super) enum Change {
    Bound(PathBuf, usize),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

impl Change {
    pub(super) fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Bound(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Removed(path) => drop(names.remove(path)),
            Self::Renamed(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }

    pub(super) fn is_in(&self, dir: &Path) -> bool {
        let (Self::Bound(path, _) | Self::Removed(path) | Self::Renamed(path, _)) = self;
        path.parent() == Some(dir)
    }
}
