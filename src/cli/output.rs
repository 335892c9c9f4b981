//! What commands print: text for people, or JSON for programs, in the shapes of the API.

use std::io::{self, Write};
use std::time::Duration;

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tokio::time::sleep;

/// How often it is looked whether anybody reads.
const LOOKS: Duration = Duration::from_millis(500);

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

/// Writes to standard output. Returns whether anybody reads there.
pub(crate) fn print(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Completes when nobody reads standard output any more, soon after.
pub(crate) async fn unread() {
    let out = io::stdout();
    loop {
        let mut looks = [PollFd::new(&out, PollFlags::empty())];
        if poll(&mut looks, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
            return;
        }
        sleep(LOOKS).await;
    }
}
