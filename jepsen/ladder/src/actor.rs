//! A holder's process as the referee sees it: started, told, stopped, continued, killed.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use ringfence_harness::until;
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

    /// Stops it with its descendants, and waits until all their threads stand still.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        for pid in self.signal(Signal::STOP)? {
            let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
            let stands_still = async || {
                let Ok(tasks) = std::fs::read_dir(&tasks) else { return Some(()) };
                let stands =
                    |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
                let mut stats = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("stat")));
                stats.all(|stat| stat.is_ok_and(stands)).then_some(())
            };
            until(SOON, "a holder stands still", stands_still).await?;
        }
        Ok(())
    }

    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Kills it with its descendants, and reaps it.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        Ok(self.child.kill().await?)
    }

    /// Sends it to the process and its descendants, from the first one down.
    fn signal(&self, signal: Signal) -> anyhow::Result<Vec<Pid>> {
        let pid_of = |id: u32| Pid::from_raw(i32::try_from(id).ok()?);
        let Some(own) = self.child.id().and_then(pid_of) else { bail!("holder {} has ended", self.name) };
        let mut pids = vec![own];
        let mut seen = 0;
        while let Some(pid) = pids.get(seen).map(|pid| pid.as_raw_nonzero()) {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let children = children.unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|id| pid_of(id.parse().ok()?)));
            seen += 1;
        }
        kill_process(own, signal)?;
        // A descendant may have ended by itself.
        for pid in &pids[1..] {
            let _ = kill_process(*pid, signal);
        }
        Ok(pids)
    }
}
