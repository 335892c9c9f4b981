//! `ringfence hold`: renews a lease that another process has acquired.

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use ringfence_client::{Client, Error, Lease, LeaseId};
use rustix::process::Signal;

use crate::cli::client::{Connection, LOST};
use crate::cli::leases::LeaseIdSource;
use crate::cli::under_lease::{
    self, Ending, FAILED, Leadership, Listen, MIN_TTL, Postgres, Released, Task, died_of, exit,
    unless_signalled,
};
use crate::job;
use crate::signals::Signals;
use crate::stderr::Stderr;

/// What the release does, as an error says it.
const RELEASE: &str = "release the lease";

#[derive(Debug, Args)]
#[command(
    override_usage = "ringfence hold [OPTIONS] <LEASE_ID> [-- <COMMAND> [ARGUMENT]...]",
    after_help = "\
Renews the lease at once, and from then on as `ringfence lock` does. With COMMAND, all is as in `ringfence lock`: its environment, its \
descendants, --postgres, --listen, signals, and a lease that may be lost. Without, ringfence holds the lease until SIGINT, SIGTERM, SIGQUIT, SIGHUP, \
SIGUSR1 or SIGUSR2, also if the program that started it ends: in a script, `trap 'kill $!' EXIT` ends it, too. Then it releases the keys. With --listen, \
/leader is 200 until then while the lease certainly lives. A signal before the first renewal is answered leaves the lease as it is, and the exit status is 128+N.

Anyone who has the lease_id may renew and release the lease; if the nodes have access rules, only its owner may. So hold it in one process: \
the cluster takes two for one holder, and keeps neither out. When one of them ends, it releases the keys; the other learns that when it next \
renews the lease, ends its COMMAND, and exits with 76. Until then, only the token stops it: send it with every write.

Exit status:
  the status of COMMAND, or 128+N if it died of signal N; without COMMAND, 0 when a signal has ended it
  76   the lease was lost, or had ended before: COMMAND was ended, or not started, or outlived it
  125  ringfence itself failed
  126  COMMAND cannot be run
  127  COMMAND was not found"
)]
pub(crate) struct Arguments {
    /// The lease_id that `lock --detach` or `acquire` printed; `-` reads it from standard input, because others see arguments
    lease_id: LeaseIdSource,
    #[command(flatten)]
    ending: Ending,
    #[command(flatten)]
    postgres: Postgres,
    #[command(flatten)]
    listen: Listen,
    #[command(flatten)]
    connection: Connection,
    /// Command to run, without a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Prints its own errors.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    // While a signal still ends this process.
    let lease_id = match arguments.lease_id.get() {
        Ok(lease_id) => lease_id,
        Err(error) => {
            eprintln!("ringfence: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    under_lease::run(async |signals, stderr| {
        let Arguments { ending, postgres, listen, connection, command, .. } = arguments;
        let has_command = !command.is_empty();
        if has_command {
            job::check_proc()?;
        }
        let client = connection.client()?;
        let leadership = listen.start(connection, &[])?;
        let adopted = match unless_signalled(signals, adopt(&client, lease_id)).await {
            Ok(adopted) => adopted.map_err(|error| connection.explain(error))?,
            Err(signal) => return Ok(died_of(signal)),
        };
        let lease = match adopted {
            Ok(lease) => lease,
            Err(lost) => {
                stderr.print(lost);
                return Ok(exit(LOST));
            }
        };
        if has_command {
            let task = Task { command, ending, postgres, leadership: &leadership, release: RELEASE };
            return task.run(lease, signals, stderr).await;
        }
        // A script starts its background processes with these ignored, and ends by them.
        signals.add(Signal::INT)?;
        signals.add(Signal::QUIT)?;
        hold(lease, &leadership, signals, stderr).await
    })
}

/// Takes the lease over, unless its time-to-live is too short to renew in time; the inner error says that it is lost.
async fn adopt(client: &Client, lease_id: LeaseId) -> anyhow::Result<Result<Lease, Error>> {
    let lease = match client.adopt(lease_id).await {
        Ok(lease) => lease,
        Err(lost @ Error::Lost(_)) => return Ok(Err(lost)),
        Err(error) => return Err(error.into()),
    };
    let ttl = Duration::from_millis(lease.grant().ttl_ms.into());
    if ttl < MIN_TTL {
        // Left as it was.
        lease.into_id();
        bail!(
            "the lease has a time-to-live of {} ms: acquire it with at least {} s, as one late renewal would end it",
            ttl.as_millis(),
            MIN_TTL.as_secs()
        );
    }
    Ok(Ok(lease))
}

/// Keeps the lease until a signal, or its loss.
async fn hold(
    lease: Lease,
    leadership: &Leadership,
    signals: &mut Signals,
    stderr: &Stderr,
) -> anyhow::Result<ExitStatus> {
    let term = leadership.of(&lease);
    // A signal is how this ends.
    let ended = unless_signalled(signals, lease.lost()).await;
    drop(term);
    let released = Released::of(lease).await;
    released.report(RELEASE, stderr);
    let Some(loss) = ended.ok().or(released.loss()) else { return Ok(exit(0)) };
    stderr.print(Error::Lost(loss));
    Ok(exit(LOST))
}
