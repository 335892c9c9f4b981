//! Job control. One process group is in the foreground of a terminal: it gets Ctrl-C and Ctrl-Z, and processes of other
//! groups are stopped when they read.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
}

impl Terminal {
    /// `None` without a controlling terminal, as under cron.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own: getpgrp() })
    }

    /// Whether this process's group is in the foreground.
    pub(super) fn is_own(&self) -> bool {
        self.is_foreground(self.own)
    }

    pub(super) fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Whether it has hung up: its window was closed, or its connection was lost.
    pub(super) fn is_gone(&self) -> bool {
        tcgetpgrp(&self.tty).is_err()
    }

    /// Puts `group` in the foreground if this process is there: not if a shell runs the job in the background.
    pub(super) fn give_to(&self, group: Pid) {
        if self.is_own() {
            self.set_foreground(group);
        }
    }

    pub(super) fn take_from(&self, group: Pid) {
        if self.is_foreground(group) {
            self.set_foreground(self.own);
        }
    }

    /// Does nothing if `group` no longer exists.
    pub(super) fn set_foreground(&self, group: Pid) {
        // Unblocked, SIGTTOU would stop this process if it is in the background.
        let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
        if let Ok(usual) = background.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(&self.tty, group);
            let _ = usual.thread_set_mask();
        }
    }
}

/// Whether standard input is the terminal, with this process's group in the foreground.
pub(super) fn is_stdin() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == getpgrp())
}
