//! A user of `ringfence lock`, which uses the Rust client: a process of the program under test, and what its command prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bent::Bent;
use super::stage::Stage;

/// What they all want.
pub(super) const KEY: &str = "grey/queue";
/// Prints the token.
const DONE_AT_ONCE: &str = "echo $RINGFENCE_TOKEN";
/// Prints the token, and then shows that it still works until it is killed. No gentler signal ends it.
const WORKS_ON: &str = "trap '' TERM; while :; do echo $RINGFENCE_TOKEN; sleep 0.05; done";

/// The process; it is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Locker {
    child: Child,
    printed: Arc<Mutex<Vec<(Instant, u64)>>>,
    _reader: JoinSet<()>,
}

impl Locker {
    /// Waits for the key, by way of these URLs, and gives it back at once.
    pub(super) fn waits(stage: &Stage, name: &str, ttl: Duration, urls: &[String]) -> anyhow::Result<Self> {
        Self::start(stage, stage.command(), stage.clients(), name, ttl, urls, DONE_AT_ONCE)
    }

    /// Holds the key for as long as it can.
    pub(super) fn holds(stage: &Stage, name: &str, ttl: Duration, urls: &[String]) -> anyhow::Result<Self> {
        Self::start(stage, stage.command_of_holder()?, stage.holder(), name, ttl, urls, WORKS_ON)
    }

    fn start(
        stage: &Stage,
        mut command: Command,
        bent: &Bent,
        name: &str,
        ttl: Duration,
        urls: &[String],
        script: &str,
    ) -> anyhow::Result<Self> {
        command.args(["lock", KEY, "--wait=300s", "--holder", name]);
        command.arg(format!("--ttl={}ms", ttl.as_millis())).arg(format!("--urls={}", urls.join(",")));
        command.args(["--", "sh", "-c", script]);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("RINGFENCE_") {
                command.env_remove(variable);
            }
        }
        bent.apply(&mut command);
        let said =
            File::options().create(true).append(true).open(stage.folder.join(format!("lock-{name}.log")))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("it is piped")?).lines();
        let (printed, mut reader) = (Arc::<Mutex<Vec<_>>>::default(), JoinSet::new());
        let prints = Arc::clone(&printed);
        reader.spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let now = Instant::now();
                prints
                    .lock()
                    .expect("no panic while it is locked")
                    .extend(line.parse().ok().map(|token| (now, token)));
            }
        });
        Ok(Self { child, printed, _reader: reader })
    }

    /// When the command first printed, and its token.
    pub(super) fn granted(&self) -> Option<(Instant, u64)> {
        self.printed.lock().expect("no panic while it is locked").first().copied()
    }

    /// When the command last showed that it works.
    pub(super) fn last(&self) -> Option<Instant> {
        self.printed.lock().expect("no panic while it is locked").last().map(|(at, _)| *at)
    }

    /// Stops or continues it and all that it has started.
    pub(super) fn signal_all(&self, signal: Signal) -> anyhow::Result<()> {
        let first = self.child.id().context("it has ended")?;
        for id in descendants(first) {
            // One that has ended meanwhile is not missed.
            if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal);
            }
        }
        Ok(())
    }
}

/// A process and all below it, the highest first.
fn descendants(first: u32) -> Vec<u32> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The parent follows the name, which may contain anything, and the state.
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        children.entry(parent.unwrap_or_default()).or_default().push(pid);
    }
    let (mut all, mut seen) = (vec![first], BTreeSet::from([first]));
    for next in 0.. {
        let Some(pid) = all.get(next) else { break };
        all.extend(children.get(pid).into_iter().flatten().filter(|child| seen.insert(**child)));
    }
    all
}
