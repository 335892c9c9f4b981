//! The signals that ask this process to end: SIGTERM and SIGINT.

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// From when it is made, the signals no longer end the process by themselves.
pub(crate) struct Stop {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Stop {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one of them.
    pub(crate) async fn requested(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
        }
    }
}
