use std::ffi::OsStr;
use std::future::ready;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::process::Process;
use crate::{Error, until};

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed, on either stream.
    pub output: String,
}

/// Runs `program` until it ends by itself; one that does not is killed, and that is an error.
pub async fn run(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    within: Duration,
) -> Result<Ended, Error> {
    let dir = tempfile::tempdir().map_err(Error::io("cannot make a directory"))?;
    let output = dir.path().join("output");
    let mut command = Command::new(&program);
    // A file in the working directory could configure it.
    command.args(arguments).current_dir(dir.path());
    let mut process = Process::start(command, &output).map_err(Error::io("cannot start the program"))?;
    let ends = until(within, "the program ends by itself", || ready(process.ended().transpose())).await;
    let read = || std::fs::read_to_string(&output).map_err(Error::io("cannot read what it printed"));
    match ends {
        Ok(status) => Ok(Ended { status: status.map_err(Error::io("cannot wait for it"))?, output: read()? }),
        Err(Error::Timeout { what, within }) => {
            Err(Error::Timeout { what: format!("{what}; it printed:\n{}", read()?), within })
        }
        Err(other) => Err(other),
    }
}
