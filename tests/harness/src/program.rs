use std::ffi::OsStr;
use std::future::ready;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::process::{Process, folder};
use crate::{Error, until};

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed, on either stream.
    pub output: String,
}

/// Runs `program` to its end. After `within` it is killed, which is an error.
pub async fn run(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    within: Duration,
) -> Result<Ended, Error> {
    // A file in the working directory could configure it.
    let dir = folder("run")?;
    let mut command = Command::new(&program);
    command.args(arguments).current_dir(dir.path());
    complete(command, within).await
}

/// The same for any command.
pub(crate) async fn complete(command: Command, within: Duration) -> Result<Ended, Error> {
    let dir = folder("output")?;
    let output = dir.path().join("output");
    let name = command.get_program().display().to_string();
    let mut process = Process::start(command, &output).map_err(Error::io(format!("cannot start {name}")))?;
    let ends = until(within, format!("{name} ends"), || ready(process.ended().transpose())).await;
    let output = std::fs::read(&output).map_err(Error::io("cannot read the output"))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    match ends {
        Ok(status) => {
            Ok(Ended { status: status.map_err(Error::io(format!("cannot wait for {name}")))?, output })
        }
        Err(error) => Err(Error::Failed(format!("{error}; it printed:\n{output}"))),
    }
}
