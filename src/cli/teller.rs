//! Standard error, for who must not wait for whoever reads it.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How long the end of the program is put off for the last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes lines to standard error, in their order and from a thread of its own: a pipe that is full, or a terminal that was
/// stopped (Ctrl-S), holds up nobody; and where nobody reads, nothing is said.
#[derive(Debug)]
pub(crate) struct Teller {
    /// Taken out at the end.
    lines: Option<Sender<String>>,
    /// Has an end when all is written.
    written: Receiver<()>,
}

impl Teller {
    pub(crate) fn start() -> io::Result<Self> {
        let ((lines, to_write), (writes, written)) = (mpsc::channel::<String>(), mpsc::channel());
        thread::Builder::new().name("teller".to_owned()).spawn(move || {
            // In the background of a terminal that stops who writes (`stty tostop`), this one goes on.
            let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
            let _ = background.thread_block();
            let _writes: Sender<()> = writes;
            for line in to_write {
                let _ = io::stderr().write_all(line.as_bytes());
            }
        })?;
        Ok(Self { lines: Some(lines), written })
    }

    pub(crate) fn tell(&self, what: impl std::fmt::Display) {
        if let Some(lines) = &self.lines {
            // The thread ends after this does.
            let _ = lines.send(format!("ringfence: {what}\n"));
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.recv_timeout(LAST_WORDS);
    }
}
