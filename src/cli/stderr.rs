//! Non-blocking standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How long the end of the program waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes lines in order on a thread of its own. A full pipe or a stopped terminal (Ctrl-S) blocks only that thread.
#[derive(Debug)]
pub(crate) struct Stderr {
    /// `None` once this is dropped.
    lines: Option<Sender<String>>,
    /// Disconnected when all lines are written.
    flushed: Receiver<()>,
}

impl Stderr {
    pub(crate) fn start() -> io::Result<Self> {
        let ((lines, queue), (running, flushed)) = (mpsc::channel::<String>(), mpsc::channel());
        thread::Builder::new().name("stderr".to_owned()).spawn(move || {
            // A background job may write even if the terminal stops such jobs (`stty tostop`).
            let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
            let _ = background.thread_block();
            let _running: Sender<()> = running;
            for line in queue {
                let _ = io::stderr().write_all(line.as_bytes());
            }
        })?;
        Ok(Self { lines: Some(lines), flushed })
    }

    /// Queues one line, after `ringfence: `.
    pub(crate) fn print(&self, message: impl Display) {
        if let Some(lines) = &self.lines {
            // The thread lives as long as this does.
            let _ = lines.send(format!("ringfence: {message}\n"));
        }
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.flushed.recv_timeout(FLUSH_TIMEOUT);
    }
}
