//! `ringfence lock`, driven as a shell would.

mod at_least;
mod descendants;
mod detached;
mod hold;
mod listen;
mod lost_leases;
mod postgres;
mod postgres_proxy;
mod running;
mod signals;
mod terminal;
mod users;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ringfence_harness::{Answered, Cluster, Consistency, definite, key, may_inject, queued, until};
use ringfence_wire::{KeyView, LeaseId};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

use crate::support::end::End;
use crate::support::{PROGRAM, SOON, file_of, urls};

async fn cluster() -> Cluster {
    catch_signals();
    Cluster::builder(PROGRAM).start().await.unwrap()
}

/// In the background of a script, tests ignore these signals, and their children would inherit that. A signal that is caught
/// here is not ignored by the children.
fn catch_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    for raw in [Signal::HUP, Signal::INT, Signal::QUIT].map(Signal::as_raw) {
        if ignored & (1 << (raw - 1)) != 0 {
            drop(unix::signal(SignalKind::from_raw(raw)).unwrap());
        }
    }
}

/// `ringfence` with these arguments, separated by spaces.
fn ringfence(cluster: &Cluster, words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("RINGFENCE_URLS", urls(cluster)).args(words.split(' '));
    piped(command)
}

/// `ringfence lock` with these arguments, for a shell with this script.
fn lock(cluster: &Cluster, words: &str, script: &str) -> Command {
    let mut command = ringfence(cluster, &format!("lock {words}"));
    command.args(["--", "sh", "-c", script]);
    command
}

fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs `command` through these words, with `program` instead of its own if given.
fn by(words: &[&str], command: Command, program: Option<&Path>) -> Command {
    let command = command.into_std();
    let program = program.map_or(command.get_program(), Path::as_os_str);
    let mut all = words.iter().map(OsStr::new).chain([program]).chain(command.get_args());
    let mut other = Command::new(all.next().unwrap());
    other.args(all).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    piped(other)
}

/// Runs `command` through these words from a shell that has run `first`.
fn after(first: &str, command: Command, words: &str) -> Command {
    by(&["sh", "-c", &format!("{first}\nexec {words} \"$@\""), "sh"], command, None)
}

/// Whether this is root; prints if not. A test that needs root returns then.
fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("skipped: needs root");
    }
    is
}

/// The exit status as a shell shows it: 128 plus the signal for a process that died of one.
fn as_shown(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

async fn end_of(child: Child) -> End {
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await.expect("it ends").unwrap();
    End::of(output)
}

async fn run(mut command: Command) -> End {
    end_of(command.spawn().unwrap()).await
}

async fn view(cluster: &Cluster, name: &str) -> KeyView {
    let client = cluster.running().next().unwrap().client();
    let name = key(name);
    let view = definite(SOON, || client.key(&name, Consistency::Linearizable)).await.unwrap();
    Ok(view).done()
}

async fn is_free(cluster: &Cluster, name: &str) {
    let view = view(cluster, name).await;
    assert!(view.holders.is_empty() && view.waiters.is_empty(), "{view:?}");
}

async fn waiters(cluster: &Cluster, name: &str, count: usize) {
    queued(&cluster.running().next().unwrap().client(), name, count).await;
}

/// Acquires the key for another holder.
async fn take(cluster: &Cluster, name: &str) -> LeaseId {
    ringfence_harness::take(&cluster.node(1).client(), name).await.lease_id
}

/// The text of a file, once it is complete.
async fn text_of(path: &Path) -> String {
    let look = || async { std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')) };
    until(SOON, format!("{} is written", path.display()), look).await.unwrap()
}

async fn pids_in(path: &Path) -> Vec<Pid> {
    text_of(path).await.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

/// See proc_pid_stat(5); `None` where there is no such process.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether the process exists, and is not a zombie.
fn lives(pid: Pid) -> bool {
    !matches!(state(pid.as_raw_nonzero().get().unsigned_abs()), None | Some('Z' | 'X'))
}

async fn die(pids: &[Pid]) {
    let look = || async { (!pids.iter().any(|pid| lives(*pid))).then_some(()) };
    until(SOON, format!("{pids:?} have died"), look).await.unwrap();
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap(), signal).unwrap();
}

/// A process that is killed when this is dropped, even after a failed test: it would keep inherited descriptors open.
struct Left(Pid);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// A shell that ignores SIGTERM, as do its children. It writes all their ids to `file`.
fn stubborn(file: &Path) -> String {
    format!(
        "trap '' TERM; sh -c 'sleep 1000 & wait' & sleep 1000 & \
         until test $(pgrep -cg 0 sleep) = 2; do :; done; pgrep -g 0 . > {0}.new; mv {0}.new {0}; wait; wait",
        file.display()
    )
}
