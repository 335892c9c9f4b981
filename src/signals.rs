//! Signals that a command handles itself.

use std::future::poll_fn;
use std::io;
use std::str::FromStr;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// What signals this process ignores, by proc_pid_status(5).
const STATUS: &str = "/proc/self/status";

/// While this exists, these signals have no other effect.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// SIGTERM and SIGINT, which ask a process to stop.
    pub(crate) fn stop() -> io::Result<Self> {
        Self::of([Signal::TERM, Signal::INT])
    }

    /// `signals`, except those that this process inherited as ignored (`nohup`, `&` in a script): they stay ignored, also
    /// by its children.
    pub(crate) fn unless_ignored(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let ignored = match std::fs::read_to_string(STATUS) {
            Ok(status) => ignored_in(&status),
            // A sandbox without /proc, where nothing else tells. Who needs it for more than this says so.
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(io::Error::new(error.kind(), format!("cannot read {STATUS}: {error}"))),
        };
        Self::of(signals.into_iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0))
    }

    fn of(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let listen = |one: Signal| Ok((one, signal(SignalKind::from_raw(one.as_raw()))?));
        signals.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// Adds a signal, also if it was ignored.
    pub(crate) fn add(&mut self, one: Signal) -> io::Result<()> {
        self.0.push((one, signal(SignalKind::from_raw(one.as_raw()))?));
        Ok(())
    }

    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let received = |(signal, stream): &mut (Signal, unix::Signal)| {
                stream.poll_recv(context).is_ready().then_some(*signal)
            };
            self.0.iter_mut().find_map(received).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The ignored signals, from bit 0 on, in the format of proc_pid_status(5).
fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// Parses a name, with or without SIG, or a number.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let named = nix::sys::signal::Signal::from_str(&name).ok().map(|signal| signal as i32);
    let raw = named.or_else(|| text.parse().ok());
    raw.and_then(Signal::from_named_raw).ok_or_else(|| "not a signal".to_owned())
}
