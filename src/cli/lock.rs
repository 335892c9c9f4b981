//! `ringfence lock`: runs a command while a lease is held.

use std::ffi::OsString;
use std::future::{pending, poll_fn};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::pin;
use std::process::{Command, ExitCode, ExitStatus};
use std::str::FromStr;
use std::task::Poll;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use ringfence_client::{Error, Lease, State};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};

use crate::cli::calls::{NOT_ACQUIRED, TO_LEAVE};
use crate::cli::connection::Connection;
use crate::cli::teller::Teller;
use crate::cli::wish::Wish;
use crate::held::terminal::Terminal;
use crate::held::{self, Change, Held};

pub(crate) const LOST: u8 = 76;
pub(crate) const OWN_ERROR: u8 = 125;
/// An end by signal n, as shells show it.
const SIGNALLED: i32 = 128;
/// Who is sent one of these is told to end.
const ENDS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// With less, a third of it, at which COMMAND is told to end, comes too soon after the second third, at which it is renewed.
const MIN_TTL: Duration = Duration::from_secs(2);
/// How long the process may take to die of SIGKILL, and this one to send it.
const TO_DIE: Duration = Duration::from_millis(200);

/// What to hold, and what to run meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
COMMAND finds in its environment: RINGFENCE_KEYS, a key a line; RINGFENCE_TOKEN; RINGFENCE_FENCE, one a line as the keys are.
Hand the token on with every write, to a resource that checks it: nothing else stops a writer that was paused together with
this program.

What COMMAND has started and leaves behind when it exits goes on without the lease. Not so where COMMAND was told to end, by a
signal, by --max or for the lease, or died of a signal: all its descendants are told to end then, in whatever process group or
session they are, are killed after --kill-after, and the keys are free when the last has ended. What became another user (sudo)
cannot be told: it is waited for. What a server runs for COMMAND (docker, systemd-run, ssh) is no descendant.

Exit status: that of COMMAND; 128+N if signal N ended it; 75 if the lease was not acquired (see -E); 76 if it was lost, and
COMMAND ended for it, or was found to have ended after it; 125 if something else went wrong here; 126 if COMMAND cannot be
run; 127 if it is not found.")]
pub(crate) struct Arguments {
    /// Keys to hold, all or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    #[command(flatten)]
    wish: Wish,
    /// End COMMAND when it was held for so long: by --signal, then by SIGKILL
    #[arg(long, value_name = "TIME")]
    max: Option<humantime::Duration>,
    /// How long COMMAND has between --signal and SIGKILL; never more than a third of --ttl
    #[arg(long, value_name = "TIME", default_value = "5s")]
    kill_after: humantime::Duration,
    /// The signal that asks COMMAND to end
    #[arg(long, value_name = "NAME", default_value = "TERM", value_parser = signal_of)]
    signal: Signal,
    /// Exit status where the lease was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = NOT_ACQUIRED)]
    conflict_exit_code: u8,
    #[command(flatten)]
    connection: Connection,
    /// What to run, without a shell
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs it. All errors are told here: their exit status differs from those of other commands.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Ok(teller) = Teller::start() else {
        return ExitCode::from(OWN_ERROR);
    };
    let done = async {
        held::check_proc()?;
        // From here on no signal ends this process by itself.
        let mut signals = Signals::new()?;
        hold_and_run(arguments, &mut signals, &teller).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(done)) {
        Ok(status) => {
            drop(teller);
            match interrupt(status).filter(|_| Terminal::open().is_some()) {
                Some(signal) => die_of(signal),
                None => code_of(status),
            }
        }
        Err(error) => {
            teller.tell(format_args!("{error:#}"));
            ExitCode::from(OWN_ERROR)
        }
    }
}

async fn hold_and_run(
    arguments: &Arguments,
    signals: &mut Signals,
    teller: &Teller,
) -> anyhow::Result<ExitStatus> {
    ensure!(
        arguments.wish.ttl() >= MIN_TTL,
        "--ttl: a command needs a lease of {} s or more, else each delay of a renewal ends it",
        MIN_TTL.as_secs()
    );
    let client = arguments.connection.client()?;
    let acquired = {
        let mut acquired = pin!(arguments.wish.of(&client, &arguments.keys).acquire());
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
        // What may have been granted, or the place in the queue, is being given back. Where that takes too long it is lost by
        // itself.
        let _ = timeout(TO_LEAVE, client.settle()).await;
    }
    let lease = match acquired {
        Ok(Ok(lease)) => lease,
        Ok(Err(error @ (Error::Held { .. } | Error::TimedOut { .. }))) => {
            teller.tell(error);
            return Ok(exit(arguments.conflict_exit_code));
        }
        Ok(Err(error)) => return Err(error.into()),
        Err(signal) => return Ok(ExitStatus::from_raw(signal.as_raw())),
    };
    let ended = run_held(arguments, &lease, signals, teller).await;
    let released = timeout(TO_LEAVE, lease.release()).await;
    match (&ended, &released) {
        (Ok(Ended::ByItself { .. }), Ok(Err(Error::Lost(loss)))) => {
            teller.tell(format_args!("the lease was lost before the command had ended: {loss}"));
        }
        (_, Ok(Ok(()) | Err(Error::Lost(_)))) => {}
        (_, Ok(Err(error))) => teller.tell(format_args!("the lease could not be released: {error}")),
        (_, Err(_)) => teller.tell("the lease could not be released in time; it ends by itself"),
    }
    Ok(match ended? {
        Ended::ByItself { .. } if matches!(released, Ok(Err(Error::Lost(_)))) => exit(LOST),
        Ended::ByItself { status, had_terminal } => {
            if let Some(signal) = interrupt(status).filter(|_| had_terminal) {
                kill_current_process_group(signal)?;
            }
            status
        }
        Ended::ForTheLease => exit(LOST),
    })
}

/// How the command ended.
enum Ended {
    /// Or by a signal that was passed on to it, or by --max. With the terminal, Ctrl-C reached it alone.
    ByItself { status: ExitStatus, had_terminal: bool },
    /// Because the lease could not be confirmed.
    ForTheLease,
}

/// Runs the command until it has ended, one way or another; where it was told to end, until all that it started has.
async fn run_held(
    arguments: &Arguments,
    lease: &Lease,
    signals: &mut Signals,
    teller: &Teller,
) -> anyhow::Result<Ended> {
    let held = Held::start(&arguments.command, &variables(lease)).await?;
    Ok(end_of(held, arguments, lease, signals, teller).await)
}

/// No error ends this: the lease is released after it, and the command must not outlive the lease.
async fn end_of(
    mut held: Held,
    arguments: &Arguments,
    lease: &Lease,
    signals: &mut Signals,
    teller: &Teller,
) -> Ended {
    let kill_after = Duration::from(arguments.kill_after).min(arguments.wish.ttl() / 3);
    let mut max = Timer::after(arguments.max.map(Duration::from));
    let mut kill = Timer::after(None);
    let (mut is_told, mut is_doubtful, mut is_lost) = (false, false, false);
    let mut ended = None;
    let sent = |sent: io::Result<()>| {
        if let Err(error) = sent {
            teller.tell(format_args!(
                "some of the command runs on, whatever becomes of the lease: no signal reaches it: {error}"
            ));
        }
    };
    let status = loop {
        tokio::select! {
            // The lease comes first, whatever else there is to do.
            biased;
            () = lease.nearly_lost(TO_DIE), if !is_lost => {
                sent(held.kill());
                (is_told, is_doubtful, is_lost) = (true, true, true);
                teller.tell(format_args!("{}: the command is killed", doubt(lease)));
            }
            () = lease.nearly_lost(kill_after + TO_DIE), if !is_doubtful => {
                sent(held.signal(arguments.signal));
                (is_told, is_doubtful) = (true, true);
                teller.tell(format_args!("{}: the command is told to end", doubt(lease)));
            }
            () = kill.over() => {
                sent(held.kill());
                kill = Timer::after(None);
                teller.tell("what was told to end has not: it is killed");
            }
            () = max.over() => {
                sent(held.signal(arguments.signal));
                is_told = true;
                (max, kill) = (Timer::after(None), Timer::after(Some(kill_after)));
                teller.tell("the command has run for as long as --max allows: it is told to end");
            }
            signal = signals.next() => {
                sent(held.signal(signal));
                is_told |= ENDS.contains(&signal);
            }
            change = held.changed() => match change {
                Change::Ended(status) => {
                    if !is_told && status.signal().is_none() {
                        break status;
                    }
                    // What it has started may take longer, or have been told of nothing.
                    if !is_told {
                        sent(held.signal(arguments.signal));
                        is_told = true;
                    }
                    kill = kill.or_after(kill_after);
                    ended = Some(status);
                }
                Change::Emptied => break ended.expect("the command ends before all have"),
                Change::Stopped(signal) => {
                    // Else it is ended first.
                    if held.stop_likewise(signal, sent) && lease.remaining() > TO_DIE {
                        held.go_on();
                    }
                }
            },
        }
    };
    let had_terminal = held.has_terminal();
    held.let_go();
    if is_doubtful { Ended::ForTheLease } else { Ended::ByItself { status, had_terminal } }
}

/// Why the command must end.
fn doubt(lease: &Lease) -> String {
    match lease.state() {
        State::Lost(loss) => format!("the lease is lost: {loss}"),
        State::Held | State::Unknown => {
            format!("the lease could not be renewed and may end in {:.1} s", lease.remaining().as_secs_f64())
        }
    }
}

/// What the command is told of the lease. The lease_id is not for others.
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
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_ERROR))
}

fn exit(code: u8) -> ExitStatus {
    ExitStatus::from_raw(i32::from(code) << 8)
}

/// The signal from the keyboard that ended it, if one did.
fn interrupt(status: ExitStatus) -> Option<Signal> {
    [Signal::INT, Signal::QUIT].into_iter().find(|signal| status.signal() == Some(signal.as_raw()))
}

/// A shell ends its script where a command died of Ctrl-C; one that exits has dealt with it. This process catches the signal for
/// good: what it becomes does not.
fn die_of(signal: Signal) -> ExitCode {
    let (signal, code) = (signal.as_raw(), SIGNALLED + signal.as_raw());
    let script = format!("ulimit -c 0; kill -{signal} $$; exit {code}");
    // Returns only if it cannot.
    let _ = Command::new("/bin/sh").args(["-c", &script]).exec();
    ExitCode::from(u8::try_from(code).unwrap_or(OWN_ERROR))
}

/// A point in time, or none.
struct Timer(Option<Instant>);

impl Timer {
    fn after(time: Option<Duration>) -> Self {
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    fn or_after(self, time: Duration) -> Self {
        if self.0.is_some() { self } else { Self::after(Some(time)) }
    }

    async fn over(&self) {
        match self.0 {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }
}

/// The signals that are passed on.
struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From when it is made, they do nothing else. What this process was told to ignore (`nohup`, `&` in a script) is ignored
    /// on, by the command as well.
    fn new() -> io::Result<Self> {
        let passed_on = [
            Signal::INT,
            Signal::TERM,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
            Signal::TSTP,
            Signal::CONT,
        ];
        let ignored = ignored_in(&std::fs::read_to_string("/proc/self/status")?);
        let listen = |passed: Signal| Ok((passed, signal(SignalKind::from_raw(passed.as_raw()))?));
        let passed_on = passed_on.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        passed_on.map(listen).collect::<io::Result<_>>().map(Self)
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let come = |(signal, stream): &mut (Signal, unix::Signal)| {
                stream.poll_recv(context).is_ready().then_some(*signal)
            };
            self.0.iter_mut().find_map(come).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The signals that a process ignores, from bit 0 on, as in proc_pid_status(5).
fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// By name, with SIG before it or without, or by number.
fn signal_of(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let named = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let named = nix::sys::signal::Signal::from_str(&named).ok().map(|signal| signal as i32);
    let raw = named.or_else(|| text.parse().ok());
    raw.and_then(Signal::from_named_raw).ok_or_else(|| "it is no signal".to_owned())
}
