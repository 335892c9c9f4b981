//! All that is on a disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Part;
use crate::contents::Contents;
use crate::names::Names;

/// All that is on a disk at one time, as backups and images of volumes have it.
#[derive(Clone, Default)]
pub struct Image {
    pub(crate) files: Vec<Contents>,
    pub(crate) names: Names,
    pub(crate) dirs: BTreeSet<PathBuf>,
}

impl Image {
    pub(crate) fn cut_power(&mut self, keeps: &mut dyn FnMut(Part) -> bool) -> bool {
        self.names.cut_power(keeps);
        let mut is_torn = false;
        for file in &mut self.files {
            is_torn |= file.cut_power(keeps);
        }
        is_torn
    }

    /// The same, with all of it synced.
    pub(crate) fn synced(&self) -> Self {
        let Self { mut files, mut names, dirs } = self.clone();
        files.iter_mut().for_each(Contents::sync);
        names.sync(|_| true);
        Self { files, names, dirs }
    }

    /// In words.
    pub(crate) fn name(&self, file: usize) -> String {
        let path = self.names.known.iter().find(|(_, known)| **known == file).map(|(path, _)| path);
        path.map_or_else(|| "a removed file".to_owned(), |path| path.display().to_string())
    }

    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.names.known.contains_key(path) || self.dirs.contains(path)
    }
}
