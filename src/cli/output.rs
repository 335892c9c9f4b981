//! What commands print: text for people, or JSON for programs, in the shapes of the API.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

/// How something is shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// One JSON object
    Json,
}

impl Output {
    /// A text that ends with a line's end.
    pub(crate) fn show<T: Serialize>(self, view: &T, as_text: fn(&T) -> String) -> anyhow::Result<String> {
        match self {
            Self::Text => Ok(as_text(view)),
            Self::Json => Ok(serde_json::to_string(view)? + "\n"),
        }
    }
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
