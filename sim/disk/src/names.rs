//! The names of files. Their changes last once their directory is synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Part;

#[derive(Clone, Default)]
pub(crate) struct Names {
    /// As a reader sees them.
    pub(crate) known: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// Not durable yet, in order.
    changes: Vec<Change>,
}

#[derive(Clone)]
pub(crate) enum Change {
    Bound(PathBuf, usize),
    Removed(PathBuf),
    Renamed(PathBuf, PathBuf),
}

impl Names {
    pub(crate) fn change(&mut self, change: Change) {
        change.apply(&mut self.known);
        self.changes.push(change);
    }

    /// Makes the changes in some directories durable.
    pub(crate) fn sync(&mut self, is_synced: impl Fn(&Path) -> bool) {
        let within = |change: &mut Change| change.path().parent().is_some_and(&is_synced);
        for change in self.changes.extract_if(.., within) {
            change.apply(&mut self.durable);
        }
    }

    pub(crate) fn cut_power(&mut self, keeps: &mut dyn FnMut(Part) -> bool) {
        for change in std::mem::take(&mut self.changes) {
            if !keeps(Part::Name) {
                break;
            }
            change.apply(&mut self.durable);
        }
        self.known = self.durable.clone();
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
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

    fn path(&self) -> &Path {
        let (Self::Bound(path, _) | Self::Removed(path) | Self::Renamed(path, _)) = self;
        path
    }
}
