//! A command under a lease, as `lock` and `hold` run it: options, variables, and exit statuses.

mod listen;
mod postgres;
mod running;

use std::ffi::OsString;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::pin;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, SystemTime};

use clap::Args;
use humantime::format_rfc3339_seconds;
use ringfence_client::{Error, Lease, Loss, TLS_LOG};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::cli::client::{HELD, LOST, RELEASE_TIMEOUT, held};
use crate::job::deadline::Deadline;
use crate::job::terminal::Terminal;
use crate::job::{self, Job};
use crate::logging::{self, LogFormat};
use crate::runtime;
use crate::signals::{self, Signals};
use crate::stderr::Stderr;
pub(crate) use listen::{Leadership, Listen};
pub(crate) use postgres::Postgres;
use running::{Outcome, Running};

/// Exit status: the program itself failed.
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
pub(crate) const MIN_TTL: Duration = Duration::from_secs(2);

/// How to end COMMAND.
#[derive(Debug, Args)]
pub(crate) struct Ending {
    /// End COMMAND after this time: send --signal, and later SIGKILL
    #[arg(long, value_name = "TIME", requires = "command")]
    max: Option<humantime::Duration>,
    /// Time between the first signal to end COMMAND and SIGKILL; at most a third of the time-to-live if the lease may be lost
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "command")]
    kill_after: humantime::Duration,
    /// Signal to end COMMAND with
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signals::parse, requires = "command")]
    signal: Signal,
}

/// What to run, and how.
pub(crate) struct Task<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) ending: &'a Ending,
    pub(crate) postgres: &'a Postgres,
    pub(crate) leadership: &'a Leadership,
    /// What the release does, as an error says it.
    pub(crate) release: &'static str,
}

/// Runs `work`, while no signal ends this process by itself. Prints its errors: their exit status differs from that of other
/// commands.
pub(crate) fn run(work: impl AsyncFnOnce(&mut Signals, &Stderr) -> anyhow::Result<ExitStatus>) -> ExitCode {
    let stderr = match Stderr::start() {
        Ok(stderr) => stderr,
        Err(error) => {
            eprintln!("ringfence: cannot start a thread: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let run = async {
        // A command may run for longer than the client's certificate lasts.
        logging::start(Some(&format!("{TLS_LOG}=warn")), LogFormat::Text, &stderr)?;
        let mut signals = Signals::unless_ignored(PASSED_ON)?;
        if job::gets_orphans() {
            signals.add(Signal::CHILD)?;
        }
        work(&mut signals, &stderr).await
    };
    match runtime::block_on(run).map_err(anyhow::Error::from).flatten() {
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

/// Waits for `work`, while there is no command. Fails with the signal that ends the wait.
pub(crate) async fn unless_signalled<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, Signal> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            signal = signals.next() => match signal {
                // Signalling oneself cannot fail.
                Signal::TSTP => drop(kill_process(getpid(), Signal::STOP)),
                Signal::CONT | Signal::WINCH => {}
                Signal::CHILD => job::reap_orphans(),
                _ => return Err(signal),
            }
        }
    }
}

impl Task<'_> {
    /// Runs the command, and releases the lease.
    pub(crate) async fn run(
        &self,
        lease: Lease,
        signals: &mut Signals,
        stderr: &Stderr,
    ) -> anyhow::Result<ExitStatus> {
        let outcome = self.outcome(&lease, signals, stderr).await;
        let released = Released::of(lease).await;
        self.status(outcome, &released, stderr)
    }

    /// Runs the command, unless something comes between.
    async fn outcome(
        &self,
        lease: &Lease,
        signals: &mut Signals,
        stderr: &Stderr,
    ) -> anyhow::Result<Outcome> {
        let mut all = variables(lease).to_vec();
        let access = match self.postgres.touch(lease, signals, stderr).await? {
            ControlFlow::Continue(access) => access,
            ControlFlow::Break(outcome) => return Ok(outcome),
        };
        all.extend(access.variables);
        let job = Job::start(self.command, &all, Deadline::of(lease)).await?;
        let _term = self.leadership.of(lease);
        Ok(Running::new(job, self.ending, lease, stderr).ends(signals).await)
    }

    /// The status to exit with.
    fn status(
        &self,
        outcome: anyhow::Result<Outcome>,
        released: &Released,
        stderr: &Stderr,
    ) -> anyhow::Result<ExitStatus> {
        if let (Ok(Outcome::Exited { .. }), Some(loss)) = (&outcome, released.loss()) {
            stderr.print(format_args!("the lease was lost before the command exited: {loss}"));
        }
        released.report(self.release, stderr);
        Ok(match outcome? {
            Outcome::Exited { .. } if released.loss().is_some() => exit(LOST),
            Outcome::Exited { status, had_terminal } => {
                if let Some(signal) = interrupt(status).filter(|_| had_terminal) {
                    kill_current_process_group(signal)?;
                }
                status
            }
            Outcome::LeaseLost => exit(LOST),
        })
    }
}

/// How the release of a lease went.
pub(crate) struct Released {
    /// The inner error is the client's, the outer one that it took too long.
    result: Result<Result<(), Error>, Elapsed>,
    /// Without the release, the lease certainly lives until then, by the wall clock of this machine.
    lives_until: SystemTime,
}

impl Released {
    pub(crate) async fn of(lease: Lease) -> Self {
        let lives_until = SystemTime::now() + lease.remaining();
        Self { result: timeout(RELEASE_TIMEOUT, lease.release()).await, lives_until }
    }

    /// Why the lease was lost before, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.result {
            Ok(Err(Error::Lost(loss))) => Some(loss),
            _ => None,
        }
    }

    /// Prints how it failed, but for a loss. `release` says what it does.
    pub(crate) fn report(&self, release: &str, stderr: &Stderr) {
        let until = format_rfc3339_seconds(self.lives_until);
        let rest = format_args!("the lease lives until {until} or longer, and ends by itself");
        match &self.result {
            Ok(Ok(()) | Err(Error::Lost(_))) => {}
            Ok(Err(error)) => stderr.print(format_args!("cannot {release}: {error}; {rest}")),
            Err(_) => stderr.print(format_args!("cannot {release} in time; {rest}")),
        }
    }
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
        (HELD, held_with(lease)),
    ]
}

/// The value of [`HELD`] for a command under `lease`.
fn held_with(lease: &Lease) -> String {
    let mut held = held();
    for key in lease.keys() {
        // Writing to a string cannot fail.
        let _ = writeln!(held, "{} {key}", lease.token());
    }
    held
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

/// The status of a process that `signal` ends.
pub(crate) fn died_of(signal: Signal) -> ExitStatus {
    ExitStatus::from_raw(signal.as_raw())
}

pub(crate) fn exit(code: u8) -> ExitStatus {
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
