//! `ringfence demo`: a stale writer, rejected, and nodes killed, on a cluster that lives as long as the story.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

use crate::demo;
use crate::demo::writer;
use crate::nodes::{Log, Nodes, Ports};
use crate::stop::Stop;

const NODES: u16 = 3;

/// Plays the demo. It succeeds if all that it claims was found true.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    // A thread of its own would be the parent of all processes, and its end their death.
    runtime()?.block_on(async {
        let mut stop = Stop::new()?;
        let dir = tempfile::Builder::new().prefix("ringfence-demo-").tempdir()?;
        let ports = Ports::reserve(NODES)?;
        // Its guards end with it, so small tokens, which are easier to follow, do no harm.
        let variables = vec![("RINGFENCE_FIRST_REVISION", "1".into())];
        let mut nodes = Nodes::new(NODES, ports.base, dir.path(), variables, Log::Files)?;
        // Whatever comes of it: the writers end with the story, then the nodes, then their data go.
        let played = tokio::select! {
            played = demo::play(&mut nodes, dir.path()) => played,
            signal = stop.requested() => {
                let number = u8::try_from(signal.as_raw()).unwrap_or(0);
                return Ok(ExitCode::from(128 + number));
            }
        };
        match played {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
            // Where a node has ended by itself, nothing else needs to be said.
            Err(error) => nodes.fail_if_ended().and(Err(error)),
        }
    })
}

/// Is one of the demo's writers.
pub(crate) fn write(arguments: writer::Arguments) -> anyhow::Result<()> {
    runtime()?.block_on(writer::run(arguments))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Whether whoever read standard output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &Error| error.kind() == ErrorKind::BrokenPipe)
}
