use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal on standard input, of which this process's group has the keyboard: Ctrl-C goes to whoever has it, and whoever
/// else reads from it is stopped.
#[derive(Debug)]
pub(crate) struct Terminal {
    own: Pid,
}

impl Terminal {
    /// `None` where standard input is none, or where it is somebody else's.
    pub(super) fn of_stdin() -> Option<Self> {
        if !is_ours() {
            return None;
        }
        // Else taking it back would stop this process: to the kernel it is in the background then.
        let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
        background.thread_block().ok()?;
        Some(Self { own: getpgrp() })
    }

    /// Not while somebody else has it: a job that a shell continues in the background.
    pub(super) fn give_to(&self, group: Pid) {
        self.hand_over(self.own, group);
    }

    pub(super) fn take_back_from(&self, group: Pid) {
        self.hand_over(group, self.own);
    }

    fn hand_over(&self, from: Pid, to: Pid) {
        if tcgetpgrp(io::stdin()).is_ok_and(|group| group == from) {
            // Who is to have it may have ended by now.
            let _ = tcsetpgrp(io::stdin(), to);
        }
    }
}

/// Whether the group of this process has the terminal on standard input.
pub(super) fn is_ours() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}
