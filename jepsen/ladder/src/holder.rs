//! A holder's process: does one step at a time as it is told on its standard input, and renews in between.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin, stdin, stdout};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{MissedTickBehavior, interval};

use crate::register::Access;
use crate::rung::{Lock, Rung, Setting};
use crate::step::{Answer, Pass, Step};

struct Holder {
    lock: Box<dyn Lock>,
    storage: Storage,
    pass: Pass,
    /// The count as it was read.
    count: Option<i64>,
    /// Whether the lock is to be renewed in the background.
    renewing: bool,
    renewals: u64,
    /// Whether a renewal has failed. The error is swallowed, as by a watchdog that nobody listens to.
    lost: bool,
}

/// Serves until its standard input ends.
pub async fn serve(setting: &Setting) -> anyhow::Result<()> {
    // Its referee may be killed while this process stands still.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut holder = Holder {
        lock: Rung::lock(setting).await?,
        storage: Storage::connect(setting).await?,
        pass: Pass::Nothing,
        count: None,
        renewing: false,
        renewals: 0,
        lost: false,
    };
    let mut lines = BufReader::new(stdin()).lines();
    let mut timer = interval(setting.ttl() / 3);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    say(&Answer::Done).await?;
    loop {
        tokio::select! {
            step = next(&mut lines) => match step? {
                None => return Ok(()),
                Some(step) => {
                    let answer = holder.perform(&step).await;
                    say(&answer.unwrap_or_else(|error| Answer::Unsure { why: format!("{error:#}") })).await?;
                    timer.reset();
                }
            },
            _ = timer.tick(), if holder.renewing => holder.renew().await,
        }
    }
}

async fn next(lines: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<Option<Step>> {
    let line = lines.next_line().await?;
    Ok(line.map(|line| serde_json::from_str(&line)).transpose()?)
}

async fn say(answer: &Answer) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all((serde_json::to_string(answer)? + "\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

impl Holder {
    async fn perform(&mut self, step: &Step) -> anyhow::Result<Answer> {
        Ok(match step {
            Step::Acquire { within_ms } => {
                let answer = self.lock.acquire(Duration::from_millis(*within_ms)).await?;
                if let Answer::Granted { pass } = &answer {
                    self.pass = pass.clone();
                    (self.renewing, self.lost) = (self.lock.needs_renewing(), false);
                }
                answer
            }
            Step::Touch => self.lock.touch().await?,
            Step::Check if self.lock.is_valid() => Answer::Alive,
            Step::Check => Answer::Lost,
            Step::Read => {
                let answer = self.access(None).await?;
                if let Answer::Read { count } = answer {
                    self.count = Some(count);
                }
                answer
            }
            Step::Write => {
                let count = self.count.context("it has not read")? + 1;
                self.access(Some(count)).await?
            }
            Step::Release { within_ms } => {
                self.renewing = false;
                self.lock.release(Duration::from_millis(*within_ms)).await?
            }
            Step::StopRenewing => {
                self.renewing = false;
                self.lock.stop_renewing();
                Answer::Done
            }
            Step::Report => {
                let unix_s = i64::try_from(UNIX_EPOCH.elapsed()?.as_secs())?;
                Answer::Report { unix_s, renewals: self.renewals, lost: self.lost }
            }
        })
    }

    async fn access(&mut self, write: Option<i64>) -> anyhow::Result<Answer> {
        match self.lock.access(write) {
            Some(answer) => answer.await,
            None => self.storage.access(&Access { pass: self.pass.clone(), write }).await,
        }
    }

    async fn renew(&mut self) {
        match self.lock.touch().await {
            Ok(Answer::Alive) => self.renewals += 1,
            _ => (self.renewing, self.lost) = (false, true),
        }
    }
}

/// A connection to the register.
struct Storage {
    answers: Lines<BufReader<OwnedReadHalf>>,
    requests: OwnedWriteHalf,
}

impl Storage {
    async fn connect(setting: &Setting) -> anyhow::Result<Self> {
        let (reader, requests) = TcpStream::connect(setting.register).await?.into_split();
        Ok(Self { answers: BufReader::new(reader).lines(), requests })
    }

    async fn access(&mut self, access: &Access) -> anyhow::Result<Answer> {
        self.requests.write_all((serde_json::to_string(access)? + "\n").as_bytes()).await?;
        let line = self.answers.next_line().await?;
        ensure!(line.is_some(), "the register has closed the connection");
        Ok(serde_json::from_str(&line.unwrap_or_default())?)
    }
}
