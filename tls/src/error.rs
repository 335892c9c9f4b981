//! Why files cannot be used.

use std::path::{Path, PathBuf};

/// Why files cannot be used: a sentence for an operator, which quotes nothing of their content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file cannot be read, or its content cannot be used.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No authority was named, and the system has none.
    #[error("the system has no certificates of authorities: name a file that has them")]
    NoSystemAuthorities,
}

impl Error {
    pub(crate) fn file(file: &Path, why: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), why: why.into() }
    }
}
