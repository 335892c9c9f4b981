use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal that this process is controlled by. One group of processes is in front there: Ctrl-C and Ctrl-Z go to it, and
/// whoever else reads from the terminal is stopped.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
}

impl Terminal {
    /// `None` where there is none, as under cron.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own: getpgrp() })
    }

    /// Whether this process's group is in front.
    pub(super) fn is_own(&self) -> bool {
        self.has(self.own)
    }

    pub(super) fn has(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|in_front| in_front == group)
    }

    /// Not while somebody else has it: a job that a shell continues in the background.
    pub(super) fn give_to(&self, group: Pid) {
        if self.is_own() {
            self.put_in_front(group);
        }
    }

    pub(super) fn take_back_from(&self, group: Pid) {
        if self.has(group) {
            self.put_in_front(self.own);
        }
    }

    /// Who is to have it may have ended by now.
    pub(super) fn put_in_front(&self, group: Pid) {
        // Else this process is stopped: to the kernel it may be in the background.
        let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
        if let Ok(usual) = background.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(&self.tty, group);
            let _ = usual.thread_set_mask();
        }
    }
}

/// Whether standard input is the terminal, and this process's group in front there.
pub(super) fn is_stdin() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|in_front| in_front == getpgrp())
}
