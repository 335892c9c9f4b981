//! The files of a configuration, and what they contained at one time.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::Error;

/// Bytes that a file may have: hundreds of certificates.
const MAX_BYTES: u64 = 1 << 20;
/// In the line before a key, whatever its kind.
const KEY: &[u8] = b"PRIVATE KEY-----";

/// PEM files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign the certificates of the other side.
    pub authority: Option<PathBuf>,
}

/// A file and its content, or why it cannot be read.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    pub(crate) file: PathBuf,
    read: Result<Vec<u8>, String>,
}

impl Content {
    pub(crate) fn read(file: &Path) -> Self {
        let read = || -> Result<Vec<u8>, String> {
            let mut bytes = Vec::new();
            let opened = File::open(file).map_err(|error| error.to_string())?;
            opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            if bytes.len() as u64 > MAX_BYTES {
                return Err(format!("it has more than {MAX_BYTES} bytes"));
            }
            Ok(bytes)
        };
        Self { file: file.to_owned(), read: read() }
    }

    /// Whether there is a private key in it.
    pub(crate) fn has_key(&self) -> bool {
        self.read.as_ref().is_ok_and(|bytes| bytes.windows(KEY.len()).any(|part| part == KEY))
    }

    /// The content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        self.read.as_deref().map_err(|why| self.error(format!("cannot be read: {why}")))
    }

    /// The error that says `why` this file cannot be used.
    pub fn error(&self, why: impl Into<String>) -> Error {
        Error::file(&self.file, why)
    }
}
