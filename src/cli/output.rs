//! Standard output: text for people, or JSON for programs, in the shapes of the HTTP API.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use clap::ValueEnum;
use ringfence_wire::ModeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tokio::time::sleep;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

impl Output {
    /// Prints `view`, as JSON or as `text`, which ends with a newline. Returns whether anybody reads standard output.
    pub(crate) fn print<T: Serialize>(self, view: &T, text: fn(&T) -> String) -> anyhow::Result<bool> {
        match self {
            Self::Text => print(&text(view)),
            Self::Json => print(&(serde_json::to_string(view)? + "\n")),
        }
    }
}

/// Writes to standard output. Returns false if its reader is gone.
pub(crate) fn print(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Completes soon after the reader of standard output is gone.
pub(crate) async fn reader_gone() {
    let out = io::stdout();
    loop {
        let mut polled = [PollFd::new(&out, PollFlags::empty())];
        if poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Lines in columns.
pub(crate) struct Table<const N: usize>(Vec<[String; N]>);

impl<const N: usize> Table<N> {
    pub(crate) fn new(head: [&str; N]) -> Self {
        Self(vec![head.map(str::to_owned)])
    }

    pub(crate) fn add(&mut self, line: [String; N]) {
        self.0.push(line);
    }

    /// Whether it has no line but its head.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() < 2
    }

    /// Columns are as wide as their widest text. Lines have no trailing spaces.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| self.0.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let line = |line: &[String; N]| {
            let columns = line.iter().enumerate().map(|(column, text)| format!("{text:<0$}", width(column)));
            columns.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// `12.3 s`, or a dash.
pub(crate) fn seconds(ms: Option<u64>) -> String {
    or_dash(ms.map(|ms| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)))
}

/// `shared(3)`.
pub(crate) fn mode(mode: ModeName, limit: Option<NonZeroU32>) -> String {
    let name = match mode {
        ModeName::Exclusive => "exclusive",
        ModeName::Shared => "shared",
    };
    limit.map_or_else(|| name.to_owned(), |limit| format!("{name}({limit})"))
}

/// A dash for `None`.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}
