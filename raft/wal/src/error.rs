//! Why a log does not open.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a log does not open. Each is a sentence for an operator; retrying helps none of them, except perhaps
/// [`OpenError::Io`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or directory could not be read, written or synced.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// Its file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Acknowledged records are, or may be, damaged or missing. Nothing was changed.
    #[error("the log is damaged: {} at byte {offset}: {what}", file.display())]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Offset in it, in bytes.
        offset: u64,
        /// What was found and what was expected.
        what: String,
    },
    /// Another version of this program wrote the log.
    #[error(
        "{} has log format {found}, this program knows only format {known}: use the version that wrote it",
        file.display()
    )]
    UnknownVersion {
        /// The segment.
        file: PathBuf,
        /// The format it names.
        found: u16,
        /// The format this program writes and reads.
        known: u16,
    },
    /// The directory holds something that is not part of a log.
    #[error("{} is no part of a log: the directory may hold nothing but the log's own segments", path.display())]
    Foreign {
        /// What was found.
        path: PathBuf,
    },
}

/// Whether the process, or the system, has run out of file descriptors. Such an error says nothing against a file.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error())
}

impl OpenError {
    /// For `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
