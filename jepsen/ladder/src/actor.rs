//! A holder's process as the referee sees it: started, told, stopped, continued, killed.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use ringfence_harness::{stands_still, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::rung::Setting;
use crate::step::{Answer, Step};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

/// A process. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) name: char,
    child: Child,
    steps: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    /// Starts it, with this clock if it is to have one that jumps.
    pub(crate) async fn start(setting: &Setting, clock: Option<&Clock>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("holder").args(["--rung", &setting.rung.to_string(), "--name", &setting.name]);
        command.args(["--servers", &setting.servers, "--key", &setting.key]);
        command.args(["--ttl-ms", &setting.ttl_ms.to_string(), "--register", &setting.register.to_string()]);
        command.args(setting.is_mistaken.then_some("--mistaken"));
        command.envs(clock.map(Clock::variables).into_iter().flatten());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a holder")?;
        let steps = child.stdin.take().context("its input is piped")?;
        let answers = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let name = setting.name.chars().next().context("a holder has a name")?;
        let mut actor = Self { name, child, steps, answers };
        actor.answer().await.with_context(|| format!("holder {name} does not start"))?;
        Ok(actor)
    }

    /// Tells it what to do; it may stand still.
    pub(crate) async fn tell(&mut self, step: &Step) -> anyhow::Result<()> {
        let line = serde_json::to_string(step)? + "\n";
        self.steps.write_all(line.as_bytes()).await?;
        Ok(self.steps.flush().await?)
    }

    /// Its answer to what it was told.
    async fn answer(&mut self) -> anyhow::Result<Answer> {
        let line = timeout(SOON, self.answers.next_line()).await.context("a holder does not answer")??;
        Ok(serde_json::from_str(&line.context("a holder has ended")?)?)
    }

    /// Does a step.
    pub(crate) async fn step(&mut self, step: &Step) -> anyhow::Result<Answer> {
        self.tell(step).await?;
        self.answer().await
    }

    /// Stops it, and then its descendants. Each stands still before its children are read: it starts no other.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let mut pids = vec![self.pid()?];
        while let Some(pid) = pids.pop() {
            // A descendant may have ended by itself.
            let _ = kill_process(pid, Signal::STOP);
            let still = async || stands_still(pid).then_some(());
            until(SOON, "a holder stands still", still).await?;
            pids.extend(children(pid));
        }
        Ok(())
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it with its descendants, and reaps it.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        self.signal(Signal::KILL)?;
        Ok(self.child.kill().await?)
    }

    fn pid(&self) -> anyhow::Result<Pid> {
        self.child.id().and_then(pid_of).with_context(|| format!("holder {} has ended", self.name))
    }

    /// Sends it to the process and its descendants, which stand still.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let mut pids = vec![self.pid()?];
        let mut seen = 0;
        while let Some(&pid) = pids.get(seen) {
            pids.extend(children(pid));
            seen += 1;
        }
        for pid in pids {
            // One that was stopped may have ended before that.
            let _ = kill_process(pid, signal);
        }
        Ok(())
    }
}

fn pid_of(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
}

/// Those that any of its threads has started, and that have not been reaped.
fn children(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
    let lists: Vec<_> = lists.filter_map(|list| std::fs::read_to_string(list).ok()).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|id| pid_of(id.parse().ok()?)).collect()
}
