//! `ringfence lock`: runs a command while it holds a lease.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::pin;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use ringfence_client::{Error, Lease, State};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::time::{Instant, sleep_until, timeout};

use crate::cli::acquire_options::AcquireOptions;
use crate::cli::client::{Connection, LOST, NOT_ACQUIRED, RELEASE_TIMEOUT};
use crate::job::terminal::Terminal;
use crate::job::{self, Event, Job};
use crate::runtime;
use crate::signals::{self, Signals};
use crate::stderr::Stderr;

/// Exit status: `lock` itself failed.
pub(crate) const FAILED: u8 = 125;
/// Added to a signal's number, as shells show it.
const SIGNALLED: i32 = 128;
/// Signals that are passed on to COMMAND.
const PASSED_ON: [Signal; 8] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];
/// Signals after which all descendants must end, not just COMMAND.
const FATAL: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Renewals run at one third of the ttl, and COMMAND is signalled with one third left. With less than this, one late
/// renewal would end it.
const MIN_TTL: Duration = Duration::from_secs(2);
/// Time to send SIGKILL, and for the processes to die of it.
const KILL_MARGIN: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
The environment of COMMAND has RINGFENCE_TOKEN, RINGFENCE_KEYS (one key per line) and RINGFENCE_FENCE (one fence per line, in \
the order of the keys). Send the token with every write, to a resource that checks it: nothing else stops a writer that is \
paused together with this program.

If COMMAND exits by itself, the descendants that it leaves behind continue without the lease. If COMMAND dies of a signal, or \
ringfence ends it (because of a signal, --max, or a lease that may be lost), ringfence ends all descendants too, in any process \
group or session. It sends the signal, and SIGKILL after --kill-after. It releases the keys when the last descendant has \
exited. It cannot signal a descendant that became another user (sudo), and waits for it. A process that a server runs for \
COMMAND (docker, systemd-run, ssh) is not a descendant.

Exit status:
  the status of COMMAND, or 128+N if it died of signal N
  75   the lease was not acquired (see -E)
  76   the lease was lost: ringfence ended COMMAND, or COMMAND outlived the lease
  125  ringfence itself failed
  126  COMMAND cannot be run
  127  COMMAND was not found")]
pub(crate) struct Arguments {
    /// Keys to acquire, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    options: AcquireOptions,
    /// End COMMAND after this time: send --signal, and later SIGKILL
    #[arg(long, value_name = "TIME")]
    max: Option<humantime::Duration>,
    /// Time between --signal and SIGKILL, at most a third of --ttl
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
    let acquired = {
        let mut acquired = pin!(arguments.options.lock(&client, &arguments.keys).acquire());
        loop {
            tokio::select! {
                acquired = &mut acquired => break Ok(acquired),
                signal = signals.next() => match signal {
                    Signal::TSTP => kill_process(getpid(), Signal::STOP)?,
                    Signal::CONT => {}
                    _ => break Err(signal),
                }
            }
        }
    };
    if !matches!(acquired, Ok(Ok(_))) {
        // The client is releasing the grant or the place in the queue. If that takes too long, it expires.
        let _ = timeout(RELEASE_TIMEOUT, client.settle()).await;
    }
    let lease = match acquired {
        Ok(Ok(lease)) => lease,
        Ok(Err(error @ (Error::Held { .. } | Error::TimedOut { .. }))) => {
            stderr.print(error);
            return Ok(exit(arguments.conflict_exit_code));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(signal) => return Ok(ExitStatus::from_raw(signal.as_raw())),
    };
    let outcome = match Job::start(&arguments.command, &variables(&lease)).await {
        Ok(job) => Ok(supervise(job, arguments, &lease, signals, stderr).await),
        Err(error) => Err(error),
    };
    let released = timeout(RELEASE_TIMEOUT, lease.release()).await;
    match (&outcome, &released) {
        (Ok(Outcome::Exited { .. }), Ok(Err(Error::Lost(loss)))) => {
            stderr.print(format_args!("the lease was lost before the command exited: {loss}"));
        }
        (_, Ok(Ok(()) | Err(Error::Lost(_)))) => {}
        (_, Ok(Err(error))) => stderr.print(format_args!("cannot release the lease: {error}")),
        (_, Err(_)) => stderr.print("the release of the lease timed out; it will expire"),
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

/// How the command ended.
enum Outcome {
    /// By itself, by a signal that was passed on, or by --max. If it had the terminal, Ctrl-C reached it alone.
    Exited { status: ExitStatus, had_terminal: bool },
    /// It was ended because the lease could not be renewed.
    LeaseLost,
}

/// Waits until the command exits. If it has to be ended, waits for all its descendants too.
///
/// Infallible: the lease is released afterwards, and the command must not outlive it.
async fn supervise(
    mut job: Job,
    arguments: &Arguments,
    lease: &Lease,
    signals: &mut Signals,
    stderr: &Stderr,
) -> Outcome {
    let kill_after = Duration::from(arguments.kill_after).min(arguments.options.ttl() / 3);
    let after = |time: Duration| Instant::now().checked_add(time);
    let (mut max, mut kill) = (arguments.max.and_then(|max| after(*max)), None);
    // COMMAND is being ended; for the lease; and was killed for the lease.
    let (mut is_ending, mut is_expiring, mut is_expired) = (false, false, false);
    let mut ended = None;
    let report = |sent: io::Result<()>| {
        if let Err(error) = sent {
            stderr.print(format_args!(
                "cannot signal some processes of the command; they may outlive the lease: {error}"
            ));
        }
    };
    let status = loop {
        tokio::select! {
            // The lease comes first.
            biased;
            () = lease.nearly_lost(KILL_MARGIN), if !is_expired => {
                report(job.kill());
                (is_ending, is_expiring, is_expired) = (true, true, true);
                stderr.print(format_args!("{}: killing the command", loss(lease)));
            }
            () = lease.nearly_lost(kill_after + KILL_MARGIN), if !is_expiring => {
                report(job.signal(arguments.signal));
                (is_ending, is_expiring) = (true, true);
                stderr.print(format_args!("{}: terminating the command", loss(lease)));
            }
            () = reached(kill) => {
                report(job.kill());
                kill = None;
                stderr.print("the command did not exit in time: killing it");
            }
            () = reached(max) => {
                report(job.signal(arguments.signal));
                is_ending = true;
                (max, kill) = (None, after(kill_after));
                stderr.print("the command reached --max: terminating it");
            }
            signal = signals.next() => {
                report(job.signal(signal));
                is_ending |= FATAL.contains(&signal);
            }
            event = job.next() => match event {
                Event::Exited(status) => {
                    if !is_ending && status.signal().is_none() {
                        break status;
                    }
                    // Descendants may need longer, or have got no signal yet.
                    if !is_ending {
                        report(job.signal(arguments.signal));
                        is_ending = true;
                    }
                    kill = kill.or_else(|| after(kill_after));
                    ended = Some(status);
                }
                Event::AllExited => break ended.expect("the command exits before its last descendant"),
                Event::Stopped(signal) => {
                    // If the lease ran out meanwhile, the next turn kills the command.
                    if job.stop(signal, report) && lease.remaining() > KILL_MARGIN {
                        job.resume();
                    }
                }
            },
        }
    };
    let had_terminal = job.has_terminal();
    job.detach();
    if is_expiring { Outcome::LeaseLost } else { Outcome::Exited { status, had_terminal } }
}

/// Why the command must end.
fn loss(lease: &Lease) -> String {
    match lease.state() {
        State::Lost(loss) => format!("the lease is lost: {loss}"),
        State::Held | State::Unknown => {
            let left = lease.remaining().as_secs_f64();
            format!("the lease could not be renewed and may end in {left:.1} s")
        }
    }
}

/// The command's variables. The lease_id stays secret: with it, anyone could release the lease.
fn variables(lease: &Lease) -> [(&'static str, String); 3] {
    let keys = lease.keys();
    let fences: Vec<String> =
        keys.iter().filter_map(|key| lease.fence(key.as_str())).map(|fence| fence.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
    [
        ("RINGFENCE_KEYS", keys.join("\n")),
        ("RINGFENCE_TOKEN", lease.token().to_string()),
        ("RINGFENCE_FENCE", fences.join("\n")),
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

/// Never completes without a deadline.
async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
