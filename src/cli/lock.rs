//! `ringfence lock`: runs a command while it holds a lease.

mod running;
mod waiting;

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::pin;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use ringfence_client::{Client, Error, Lease};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::time::timeout;

use crate::cli::acquire_options::AcquireOptions;
use crate::cli::client::{Connection, LOST, NOT_ACQUIRED, RELEASE_TIMEOUT};
use crate::job::deadline::Deadline;
use crate::job::terminal::Terminal;
use crate::job::{self, Job};
use crate::runtime;
use crate::signals::{self, Signals};
use crate::stderr::Stderr;
use running::{Outcome, Running};

/// Exit status: `lock` itself failed.
pub(crate) const FAILED: u8 = 125;
/// Added to a signal's number, as shells show it.
const SIGNALLED: i32 = 128;
/// Signals that end the command ([`Job::is_ended_by`]), or are passed on ([`Job::pass_on`]).
const PASSED_ON: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];
/// Renewals run at one third of the ttl, and COMMAND is signalled with one third left. With less than this, one late
/// renewal would end it.
const MIN_TTL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(
    override_usage = "ringfence lock [OPTIONS] <KEY>... -- <COMMAND> [ARGUMENT]...",
    after_help = "\
The environment of COMMAND has RINGFENCE_TOKEN, RINGFENCE_KEYS (one key per line) and RINGFENCE_FENCE (one fence per line, in \
the order of the keys). Send the token with every write, to a resource that checks it: nothing else stops a writer that is \
paused together with this program. The fences are those of the grant. While others share a key, its fence rises; `ringfence get \
KEY` shows the latest. RINGFENCE_HELD has the leases of all `ringfence lock` that COMMAND runs under (one TOKEN KEY per line): \
waiting for one's own key fails.

If COMMAND exits by itself, the descendants that it leaves behind continue without the lease. If COMMAND dies of a signal, or \
ringfence ends it (because of a signal, --max, or a lease that may be lost), ringfence ends all descendants too, in any process \
group or session. It sends the signal, and SIGKILL after --kill-after. It releases the keys when the last descendant has \
exited. It cannot signal a descendant that became another user (sudo), and waits for it. A process that a server runs for \
COMMAND (docker, systemd-run, ssh) is not a descendant.

SIGINT, SIGTERM and SIGQUIT to ringfence end COMMAND, and so does SIGHUP when the terminal has hung up. Any other SIGHUP, \
SIGUSR1, SIGUSR2 and SIGWINCH go to COMMAND alone. SIGTSTP stops COMMAND and its descendants, until SIGCONT. While \
Ctrl-Z stops ringfence, too, nobody renews the lease: COMMAND is killed before it ends.

Exit status:
  the status of COMMAND, or 128+N if it died of signal N
  75   the lease was not acquired (see -E)
  76   the lease was lost: COMMAND was ended, or not started, or outlived it
  125  ringfence itself failed
  126  COMMAND cannot be run
  127  COMMAND was not found"
)]
pub(crate) struct Arguments {
    /// Keys to acquire, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    options: AcquireOptions,
    /// End COMMAND after this time: send --signal, and later SIGKILL
    #[arg(long, value_name = "TIME")]
    max: Option<humantime::Duration>,
    /// Time between the first signal to end COMMAND and SIGKILL; at most a third of --ttl if the lease may be lost
    #[arg(long, value_name = "TIME", default_value = "5s")]
    kill_after: humantime::Duration,
    /// Signal to end COMMAND with
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signals::parse)]
    signal: Signal,
    /// Exit status if the lease is not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = NOT_ACQUIRED)]
    conflict_exit_code: u8,
    #[command(flatten)]
    connection: Connection,
    /// Command to run, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Prints its own errors: their exit status differs from that of other commands.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Ok(stderr) = Stderr::start() else {
        return ExitCode::from(FAILED);
    };
    let lock = async {
        job::check_proc()?;
        // From here on, no signal ends this process by itself.
        let mut signals = Signals::unless_ignored(PASSED_ON)?;
        if job::gets_orphans() {
            signals.add(Signal::CHILD)?;
        }
        acquire_and_run(arguments, &mut signals, &stderr).await
    };
    match runtime::block_on(lock).map_err(anyhow::Error::from).flatten() {
        Ok(status) => {
            drop(stderr);
            match interrupt(status).filter(|_| Terminal::open().is_some()) {
                Some(signal) => die_of(signal),
                None => code_of(status),
            }
        }
        Err(error) => {
            stderr.print(format_args!("{error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

async fn acquire_and_run(
    arguments: &Arguments,
    signals: &mut Signals,
    stderr: &Stderr,
) -> anyhow::Result<ExitStatus> {
    ensure!(
        arguments.options.ttl() >= MIN_TTL,
        "--ttl must be at least {} s for a command: with less, one late renewal would end it",
        MIN_TTL.as_secs()
    );
    let client = arguments.connection.client()?;
    let acquired = acquire(arguments, &client, signals, stderr).await;
    if acquired.is_err() {
        // The client is releasing the grant or the place in the queue. If that takes too long, it expires.
        let _ = timeout(RELEASE_TIMEOUT, client.settle()).await;
    }
    let lease = match acquired {
        Ok(lease) => lease,
        Err(NotAcquired::Failed(error @ (Error::Held { .. } | Error::TimedOut { .. }))) => {
            stderr.print(error);
            return Ok(exit(arguments.conflict_exit_code));
        }
        Err(NotAcquired::Failed(error)) => return Err(arguments.connection.explain(error.into())),
        Err(NotAcquired::IsOwn(error)) => return Err(error),
        Err(NotAcquired::Signal(signal)) => return Ok(ExitStatus::from_raw(signal.as_raw())),
    };
    let outcome = match Job::start(&arguments.command, &variables(&lease), Deadline::of(&lease)).await {
        Ok(job) => Ok(Running::new(job, arguments, &lease, stderr).ends(signals).await),
        Err(error) => Err(error),
    };
    let released = timeout(RELEASE_TIMEOUT, lease.release()).await;
    status(outcome, &released.map_err(drop), stderr)
}

/// Why there is no lease.
enum NotAcquired {
    Failed(Error),
    /// This process runs under a lease on one of the keys.
    IsOwn(anyhow::Error),
    /// The signal ended the wait.
    Signal(Signal),
}

/// Waits for the lease.
async fn acquire(
    arguments: &Arguments,
    client: &Client,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Result<Lease, NotAcquired> {
    let Arguments { keys, options, .. } = arguments;
    let mut acquired = pin!(async {
        waiting::refuse_own(client, keys, options).await.map_err(NotAcquired::IsOwn)?;
        options.lock(client, keys).acquire().await.map_err(NotAcquired::Failed)
    });
    let mut told = pin!(waiting::tell(client, keys, options, stderr));
    let mut is_told = false;
    loop {
        tokio::select! {
            acquired = &mut acquired => return acquired,
            () = &mut told, if !is_told => is_told = true,
            signal = signals.next() => match signal {
                // Signalling oneself cannot fail.
                Signal::TSTP => drop(kill_process(getpid(), Signal::STOP)),
                Signal::CONT | Signal::WINCH => {}
                Signal::CHILD => job::reap_orphans(),
                _ => return Err(NotAcquired::Signal(signal)),
            }
        }
    }
}

/// The status to exit with. `released` is how the release went, if it did not time out.
fn status(
    outcome: anyhow::Result<Outcome>,
    released: &Result<Result<(), Error>, ()>,
    stderr: &Stderr,
) -> anyhow::Result<ExitStatus> {
    match (&outcome, released) {
        (Ok(Outcome::Exited { .. }), Ok(Err(Error::Lost(loss)))) => {
            stderr.print(format_args!("the lease was lost before the command exited: {loss}"));
        }
        (_, Ok(Ok(()) | Err(Error::Lost(_)))) => {}
        (_, Ok(Err(error))) => stderr.print(format_args!("cannot release the lease: {error}")),
        (_, Err(())) => stderr.print("the release of the lease timed out; it will expire"),
    }
    Ok(match outcome? {
        Outcome::Exited { .. } if matches!(released, Ok(Err(Error::Lost(_)))) => exit(LOST),
        Outcome::Exited { status, had_terminal } => {
            if let Some(signal) = interrupt(status).filter(|_| had_terminal) {
                kill_current_process_group(signal)?;
            }
            status
        }
        Outcome::LeaseLost => exit(LOST),
    })
}

/// The command's variables. The lease_id stays secret: with it, anyone could release the lease.
fn variables(lease: &Lease) -> [(&'static str, String); 4] {
    let keys = lease.keys();
    let fences: Vec<String> =
        keys.iter().filter_map(|key| lease.fence(key.as_str())).map(|fence| fence.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
    [
        ("RINGFENCE_KEYS", keys.join("\n")),
        ("RINGFENCE_TOKEN", lease.token().to_string()),
        ("RINGFENCE_FENCE", fences.join("\n")),
        (waiting::HELD, waiting::held_with(lease)),
    ]
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

fn exit(code: u8) -> ExitStatus {
    ExitStatus::from_raw(i32::from(code) << 8)
}

/// The keyboard signal that ended it, if one did.
fn interrupt(status: ExitStatus) -> Option<Signal> {
    [Signal::INT, Signal::QUIT].into_iter().find(|signal| status.signal() == Some(signal.as_raw()))
}

/// Dies of `signal`. A shell ends its script if a command *dies* of Ctrl-C, but not if it exits with 130. This process
/// has a handler for the signal; the shell that it becomes has none.
fn die_of(signal: Signal) -> ExitCode {
    let (signal, code) = (signal.as_raw(), SIGNALLED + signal.as_raw());
    let script = format!("ulimit -c 0; kill -{signal} $$; exit {code}");
    // Returns only on failure.
    let _ = Command::new("/bin/sh").args(["-c", &script]).exec();
    ExitCode::from(u8::try_from(code).unwrap_or(FAILED))
}
