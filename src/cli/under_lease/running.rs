//! A command that runs under a lease: what ends it, and how.

use std::future::pending;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use ringfence_client::{Lease, State};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::Ending;
use crate::job::deadline::Deadline;
use crate::job::{Event, Job};
use crate::signals::Signals;
use crate::stderr::Stderr;

/// Time to send SIGKILL, and for the processes to die of it.
const KILL_MARGIN: Duration = Duration::from_millis(200);
/// The supervisor learns of a renewal after an eighth of the time that was left without it, within these bounds.
const EXTEND: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// How the command ended.
pub(super) enum Outcome {
    /// By itself, by a signal that was passed on, or by --max. If it had the terminal, Ctrl-C reached it alone.
    Exited { status: ExitStatus, had_terminal: bool },
    /// It was ended because the lease could not be renewed.
    LeaseLost,
}

/// A command and what is being done to it.
pub(super) struct Running<'a> {
    job: Job,
    ending: &'a Ending,
    lease: &'a Lease,
    stderr: &'a Stderr,
    /// When to end it, and when to kill it.
    max: Option<Instant>,
    kill: Option<Instant>,
    /// It is being ended; for the lease; and was killed for the lease.
    is_ending: bool,
    is_expiring: bool,
    is_expired: bool,
    /// Once it has exited, and descendants have not.
    ended: Option<ExitStatus>,
}

impl<'a> Running<'a> {
    pub(super) fn new(job: Job, ending: &'a Ending, lease: &'a Lease, stderr: &'a Stderr) -> Self {
        Self {
            job,
            ending,
            lease,
            stderr,
            max: ending.max.and_then(|max| after(*max)),
            kill: None,
            is_ending: false,
            is_expiring: false,
            is_expired: false,
            ended: None,
        }
    }

    /// Waits until the command exits. If it has to be ended, waits for all its descendants too.
    ///
    /// Infallible: the lease is released afterwards, and the command must not outlive it.
    pub(super) async fn ends(mut self, signals: &mut Signals) -> Outcome {
        // What is left of a healthy lease after a late renewal must suffice.
        let ttl = Duration::from_millis(self.lease.grant().ttl_ms.into());
        let notice = Duration::from(self.ending.kill_after).min(ttl / 3);
        let status = loop {
            self.job.extend(Deadline::of(self.lease));
            let nap = (self.lease.remaining() / 8).clamp(EXTEND[0], EXTEND[1]);
            tokio::select! {
                // The lease comes first.
                biased;
                () = self.lease.nearly_lost(KILL_MARGIN), if !self.is_expired => {
                    self.kill_for_lease(format_args!("{}: killing the command", loss(self.lease)));
                }
                () = self.lease.nearly_lost(notice + KILL_MARGIN), if !self.is_expiring => {
                    self.is_expiring = true;
                    self.end();
                    self.stderr.print(format_args!("{}: terminating the command", loss(self.lease)));
                }
                () = reached(self.kill) => {
                    self.kill = None;
                    self.kill();
                    self.stderr.print("the command did not exit in time: killing it");
                }
                () = reached(self.max) => {
                    self.max = None;
                    self.end_in_time();
                    self.stderr.print("the command reached --max: terminating it");
                }
                signal = signals.next() => self.got(signal),
                event = self.job.next() => if let Some(status) = self.noticed(event) {
                    break status;
                },
                () = sleep(nap), if !self.is_expired => {}
            }
        };
        let had_terminal = self.job.has_terminal();
        self.job.detach();
        if self.is_expiring { Outcome::LeaseLost } else { Outcome::Exited { status, had_terminal } }
    }

    fn got(&mut self, signal: Signal) {
        if signal == Signal::CHILD {
            return self.job.reap_orphans();
        }
        // Looked at once: the terminal may hang up in between.
        let ends = self.job.is_ended_by(signal);
        let sent = if ends { self.job.end(signal) } else { self.job.pass_on(signal) };
        self.report(sent);
        if ends {
            self.is_ending = true;
            self.kill_later();
        }
    }

    /// Returns the exit status of the command once nothing of it is left that has to end.
    fn noticed(&mut self, event: Event) -> Option<ExitStatus> {
        match event {
            Event::Exited(status) => {
                if !self.is_ending && status.signal().is_none() {
                    return Some(status);
                }
                // Descendants may need longer, or have got no signal yet.
                self.end_in_time();
                self.ended = Some(status);
            }
            Event::AllExited => {
                return Some(self.ended.expect("the command exits before its last descendant"));
            }
            Event::Stopped(signal) => {
                let stderr = self.stderr;
                // If the lease ran out meanwhile, the next turn kills the command.
                if self.job.stop(signal, |sent| report(stderr, sent)) && self.lease.remaining() > KILL_MARGIN
                {
                    self.job.resume();
                }
            }
            Event::TooLate if self.is_expired => {}
            Event::TooLate => {
                self.kill_for_lease(
                    "the lease may have ended while this program was paused: the command was killed",
                );
            }
        }
        None
    }

    /// Sends --signal, unless the command is being ended already, and lets SIGKILL follow.
    fn end_in_time(&mut self) {
        self.end();
        self.kill_later();
    }

    fn end(&mut self) {
        if !self.is_ending {
            self.is_ending = true;
            self.report(self.job.end(self.ending.signal));
        }
    }

    fn kill_later(&mut self) {
        self.kill = self.kill.or_else(|| after(self.ending.kill_after.into()));
    }

    fn kill(&mut self) {
        let sent = self.job.kill();
        self.report(sent);
    }

    fn kill_for_lease(&mut self, message: impl std::fmt::Display) {
        (self.is_ending, self.is_expiring, self.is_expired) = (true, true, true);
        self.kill();
        self.stderr.print(message);
    }

    fn report(&self, sent: io::Result<()>) {
        report(self.stderr, sent);
    }
}

fn report(stderr: &Stderr, sent: io::Result<()>) {
    if let Err(error) = sent {
        stderr.print(format_args!(
            "cannot signal some processes of the command; they may outlive the lease: {error}"
        ));
    }
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

/// `None` if that is too far away to come.
fn after(time: Duration) -> Option<Instant> {
    Instant::now().checked_add(time)
}

/// Never completes without a deadline.
async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
