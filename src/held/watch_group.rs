//! Kills a group of processes when whoever started it is gone.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};

use super::this_program;

/// Says that there is nothing to kill.
const DISMISSED: u8 = b'.';

/// Whom to kill.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    group: i32,
}

/// Reads standard input; at its end it kills the group, unless it was dismissed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said)?;
    let group = Pid::from_raw(arguments.group).context("--group is no process group")?;
    if !said.contains(&DISMISSED) {
        // It may have ended by now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(())
}

/// The process that does so. It goes about it when this is dropped, in whatever way.
#[derive(Debug)]
pub(super) struct Watcher {
    process: Child,
    /// Taken out when it is dismissed.
    pipe: Option<ChildStdin>,
}

impl Watcher {
    pub(super) fn start(group: Pid) -> anyhow::Result<Self> {
        let mut command = this_program("watch-group");
        command.arg(format!("--group={group}"));
        // In no group that anybody sends signals to.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut process = command.spawn().context("cannot start a process")?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    /// There is nothing to kill any more.
    pub(super) fn dismiss(mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // If it has been killed, it kills nobody either.
            let _ = pipe.write_all(&[DISMISSED]);
        }
        let _ = self.process.wait();
    }
}
