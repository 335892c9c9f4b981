//! The files of the repository.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// The text files of a source tree by their paths, which have slashes.
#[derive(Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the repository that contains this crate. Leaves out what `.gitignore` and hidden names leave out.
    pub fn of_repository() -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let ignored = fs::read_to_string(root.join(".gitignore"))?;
        let ignored: Vec<&str> = ignored
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.trim_end_matches('/'))
            .filter(|line| !line.is_empty())
            .collect();
        let mut tree = Self::default();
        tree.read(&root, "", &ignored)?;
        Ok(tree)
    }

    /// A tree of invented files.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self { files: owned.collect() }
    }

    fn read(&mut self, dir: &Path, prefix: &str, ignored: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            // A pattern that begins with a slash is a path from the root, any other is a name anywhere.
            let is_ignored =
                |pattern: &&str| pattern.strip_prefix('/').map_or(name == **pattern, |at| path == at);
            if name.starts_with('.') || ignored.iter().any(is_ignored) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.read(&entry.path(), &format!("{path}/"), ignored)?;
            } else {
                let bytes = fs::read(entry.path())?;
                self.files.insert(path, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        Ok(())
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether a file or a folder is there. A folder may end in a slash.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains_key(path) || !self.under(&format!("{path}/")).is_empty()
    }

    /// All paths that begin with `prefix`.
    pub fn under(&self, prefix: &str) -> Vec<&str> {
        let from = self.files.range(prefix.to_owned()..);
        from.map(|(path, _)| path.as_str()).take_while(|path| path.starts_with(prefix)).collect()
    }

    /// The files whose paths end in `end`, with their texts.
    pub fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.ends_with(end))
    }

    /// The folders of all crates: those with a `Cargo.toml`. The root is the empty string; others end in a slash.
    pub fn crates(&self) -> Vec<&str> {
        self.ending("Cargo.toml").map(|(path, _)| path.trim_end_matches("Cargo.toml")).collect()
    }
}
