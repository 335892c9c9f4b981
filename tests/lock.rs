//! `ringfence lock`, driven as a shell would.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence_harness::{Acquired, Answered, Cluster, Consistency, definite, key, try_once, until};
use ringfence_wire::{KeyView, LeaseId, Token};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

async fn cluster() -> Cluster {
    hear_signals();
    Cluster::builder(PROGRAM).start().await.unwrap()
}

/// Where the tests run in the background of a script, they ignore these signals, and so would all that they start. What is
/// caught here is not ignored there.
fn hear_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    for raw in [Signal::HUP, Signal::INT, Signal::QUIT].map(Signal::as_raw) {
        if ignored & (1 << (raw - 1)) != 0 {
            drop(unix::signal(SignalKind::from_raw(raw)).unwrap());
        }
    }
}

/// `ringfence lock` with these words, a space between two, at this cluster; then a shell with this script.
fn lock(cluster: &Cluster, words: &str, script: &str) -> Command {
    let urls: Vec<String> = cluster.nodes().iter().map(|node| node.url()).collect();
    let mut command = Command::new(PROGRAM);
    command.env("RINGFENCE_URLS", urls.join(",")).arg("lock").args(words.split(' '));
    command.args(["--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// How it ended, and what it printed to standard output and to standard error.
async fn end_of(child: Child) -> (ExitStatus, String, String) {
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await.expect("it ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status, text(output.stdout), text(output.stderr))
}

async fn run(mut command: Command) -> (ExitStatus, String, String) {
    end_of(command.spawn().unwrap()).await
}

/// In a terminal, who is interrupted dies of it, as shells show it.
fn as_shown(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

async fn code(command: Command) -> i32 {
    let (status, out, err) = run(command).await;
    status.code().unwrap_or_else(|| panic!("{status}: {out}{err}"))
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
    let look = || async { (view(cluster, name).await.waiters.len() == count).then_some(()) };
    until(SOON, format!("{count} waiters"), look).await.unwrap();
}

/// Takes the key under another hand.
async fn take(cluster: &Cluster, name: &str) -> (LeaseId, Token) {
    let (client, lease_id) = (cluster.node(1).client(), LeaseId::random());
    let wish = try_once(name);
    match Ok(definite(SOON, || client.acquire(lease_id, &wish)).await.unwrap()).done() {
        Acquired::Granted(grant) | Acquired::Standing(grant) => (lease_id, grant.token),
        Acquired::Waiting(waiting) => panic!("{waiting:?}"),
    }
}

/// What is in a file, once something is.
async fn text_of(path: &Path) -> String {
    let look = || async { std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')) };
    until(SOON, format!("{} is written", path.display()), look).await.unwrap()
}

async fn pids_in(path: &Path) -> Vec<Pid> {
    text_of(path).await.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

/// As in proc_pid_stat(5); `None` where there is no such process.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Whether the process is there, and is no corpse that nobody has looked at yet.
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

#[tokio::test]
async fn the_exit_status_is_that_of_the_command_and_the_key_is_free_then() {
    let cluster = cluster().await;
    assert_eq!(code(lock(&cluster, "a", "exit 0")).await, 0);
    assert_eq!(code(lock(&cluster, "a", "exit 7")).await, 7);
    assert_eq!(code(lock(&cluster, "a", "kill -USR1 $$")).await, 128 + 10);
    assert_eq!(code(lock(&cluster, "a", "kill -KILL $$")).await, 128 + 9);
    is_free(&cluster, "a").await;
    for (program, expected) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let mut command = lock(&cluster, "a", "");
        command = {
            let mut other = Command::new(PROGRAM);
            other.env("RINGFENCE_URLS", command.as_std().get_envs().next().unwrap().1.unwrap());
            other.args(["lock", "a", "--", program]).stderr(Stdio::piped()).stdout(Stdio::piped());
            other
        };
        let (status, _, err) = run(command).await;
        assert_eq!(status.code(), Some(expected), "{err}");
        assert!(err.contains(program), "{err}");
    }
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn who_does_not_get_the_key_is_told_so_by_the_exit_status_and_runs_nothing() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    for (words, expected) in [("a --try", 75), ("a --wait 200ms", 75), ("b a --try -E 9", 9)] {
        let (status, out, err) = run(lock(&cluster, words, "echo ran")).await;
        assert_eq!((status.code(), out.as_str()), (Some(expected), ""), "{words}: {err}");
        assert!(err.contains("ringfence: "), "{err}");
    }
    is_free(&cluster, "b").await;
    cluster.kill_all().unwrap();
    let (status, out, err) = run(lock(&cluster, "c --try", "echo ran")).await;
    assert_eq!((status.code(), out.as_str()), (Some(125), ""), "{err}");
    let (status, _, err) = run(lock(&cluster, "c//d", "echo ran")).await;
    assert_eq!(status.code(), Some(125), "{err}");
    assert!(err.contains("keys[0]"), "{err}");
}

#[tokio::test]
async fn the_command_is_told_its_token_and_reads_standard_input() {
    let cluster = cluster().await;
    let script = "env | grep ^RINGFENCE_ | grep -vE 'URLS|UNDER_TEST'; cat";
    let mut command = lock(&cluster, "b a --ttl 30s", script);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let held = || async { view(&cluster, "a").await.holders.first().map(|holder| holder.token) };
    let token = until(SOON, "it holds", held).await.unwrap();
    let mut pipe = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut pipe, b"said\n").await.unwrap();
    drop(pipe);
    let (status, out, err) = end_of(child).await;
    assert!(status.success(), "{err}");
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.pop(), Some("said"));
    lines.sort_unstable();
    // The second key and the second fence are lines of their own.
    let (fence, name) = (format!("RINGFENCE_FENCE={token}"), format!("RINGFENCE_TOKEN={token}"));
    assert_eq!(lines, [fence.as_str(), "RINGFENCE_KEYS=b", name.as_str()], "{out}");
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn commands_on_one_key_run_one_after_the_other_and_readers_together() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("log");
    // Whoever is not alone finds the other's file.
    let script = format!(
        "test ! -e {0}.in && touch {0}.in && sleep 0.05 && rm {0}.in && echo . >> {0}",
        file.display()
    );
    let children: Vec<Child> = (0..8).map(|_| lock(&cluster, "jobs/a", &script).spawn().unwrap()).collect();
    for child in children {
        let (status, _, err) = end_of(child).await;
        assert!(status.success(), "{err}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 8);

    // Two readers meet: each waits for the other, while it holds.
    let met = |own: &str, other: &str| {
        format!("touch {0}.{own}; until test -e {0}.{other}; do sleep 0.01; done", file.display())
    };
    let readers = [met("r1", "r2"), met("r2", "r1")];
    let children: Vec<Child> = readers
        .iter()
        .map(|script| lock(&cluster, "b --shared --limit 2", script).spawn().unwrap())
        .collect();
    for child in children {
        assert!(end_of(child).await.0.success());
    }
}

#[tokio::test]
async fn a_signal_ends_the_wait_and_the_place_in_the_queue_is_given_back() {
    let cluster = cluster().await;
    take(&cluster, "a").await;
    for (sent, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let child = lock(&cluster, "a", "echo ran").spawn().unwrap();
        waiters(&cluster, "a", 1).await;
        signal(&child, sent);
        let (status, out, err) = end_of(child).await;
        assert_eq!((as_shown(status), out.as_str()), (Some(expected), ""), "{err}");
        // It is not the end of its connection that took it out, 2 s later.
        assert_eq!(view(&cluster, "a").await.waiters, []);
    }
}

#[tokio::test]
async fn who_is_stopped_in_the_queue_goes_on_waiting_when_it_is_continued() {
    let cluster = cluster().await;
    let (lease_id, _) = take(&cluster, "a").await;
    let child = lock(&cluster, "a", "echo ran").spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    signal(&child, Signal::TSTP);
    let pid = child.id().unwrap();
    let stopped = || async { (state(pid) == Some('T')).then_some(()) };
    until(SOON, "it is stopped", stopped).await.unwrap();
    signal(&child, Signal::CONT);
    cluster.node(1).client().release(lease_id).await.done();
    let (status, out, err) = end_of(child).await;
    assert_eq!((status.code(), out.as_str()), (Some(0), "ran\n"), "{err}");
}

#[tokio::test]
async fn signals_reach_the_command_and_its_children() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = format!(
        "trap 'echo caught; exit 3' TERM; sleep 100 & echo $$ $! > {0}.new; mv {0}.new {0}; wait",
        file.display()
    );
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::TERM);
    let (status, out, err) = end_of(child).await;
    assert_eq!((status.code(), out.as_str()), (Some(3), "caught\n"), "{err}");
    die(&pids).await;
    is_free(&cluster, "a").await;
}

/// A shell that ignores SIGTERM, as do its children, and writes down all their ids.
fn stubborn(file: &Path) -> String {
    format!(
        "trap '' TERM; sh -c 'sleep 1000 & wait' & sleep 1000 & \
         until test $(pgrep -cg 0 sleep) = 2; do :; done; pgrep -g 0 . > {0}.new; mv {0}.new {0}; wait; wait",
        file.display()
    )
}

#[tokio::test]
async fn when_the_cluster_is_gone_a_stubborn_command_dies_with_all_it_started_before_the_lease_can_end() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let child = lock(&cluster, "a --ttl 6s", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    assert!(pids.len() >= 4, "{pids:?}");
    die_without_the_cluster(&cluster, child, &pids).await;
}

/// Measures how late this machine wakes up a thread.
struct Lateness {
    enough: Arc<AtomicBool>,
    worst: std::thread::JoinHandle<Duration>,
}

impl Lateness {
    fn start() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        let enough = Arc::<AtomicBool>::default();
        let is_enough = Arc::clone(&enough);
        let worst = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !is_enough.load(Ordering::Relaxed) {
                let slept = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(slept.elapsed() - NAP);
            }
            worst
        });
        Self { enough, worst }
    }

    /// Fails if what began `since` has taken until the end of a lease of 6 s, and for no delay of this machine: the time to
    /// kill, the death and the look at it may each have come late.
    fn check(self, since: Instant) {
        let took = since.elapsed();
        self.enough.store(true, Ordering::Relaxed);
        let worst = self.worst.join().unwrap();
        assert!(took < Duration::from_secs(6) + 3 * worst, "{took:?}, where a nap ends {worst:?} late");
    }
}

/// That cluster does not answer any more, and these die for it before a lease of 6 s can end; then it goes on.
async fn die_without_the_cluster(cluster: &Cluster, child: Child, pids: &[Pid]) {
    let (lateness, stopped) = (Lateness::start(), Instant::now());
    for node in cluster.nodes() {
        node.stop().unwrap();
    }
    die(pids).await;
    // The last renewal was sent before.
    lateness.check(stopped);
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(76), "{err}");
    for node in cluster.nodes() {
        node.resume().unwrap();
    }
}

#[tokio::test]
async fn a_command_whose_lease_is_revoked_is_killed() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let child = lock(&cluster, "a --ttl 10s", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    let token = view(&cluster, "a").await.holders[0].token;
    cluster.node(2).client().revoke(&key("a"), token).await.done();
    die(&pids).await;
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(76), "{err}");
    assert!(err.contains("revoked"), "{err}");
}

#[tokio::test]
async fn the_command_and_all_it_started_die_with_their_parent() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let child = lock(&cluster, "a", &stubborn(&file)).spawn().unwrap();
    let pids = pids_in(&file).await;
    signal(&child, Signal::KILL);
    assert_eq!(end_of(child).await.0.signal(), Some(9));
    die(&pids).await;
}

#[tokio::test]
async fn a_command_is_ended_when_it_has_run_for_as_long_as_it_may() {
    let cluster = cluster().await;
    assert_eq!(code(lock(&cluster, "a --max 200ms", "sleep 1000")).await, 128 + 15);
    // A signal that comes before the shell has set its trap ends it: then it is given more time.
    for (words, script, expected) in [
        ("--signal usr1", "trap 'exit 5' USR1; echo set; sleep 1000 & wait", 5),
        ("--kill-after 300ms", "trap '' TERM; echo set; sleep 1000 & wait; wait", 128 + 9),
    ] {
        let mut ended = None;
        for max in ["200ms", "2s", "20s"] {
            let (status, out, err) = run(lock(&cluster, &format!("a --max {max} {words}"), script)).await;
            if out == "set\n" {
                ended = Some((status.code(), err));
                break;
            }
        }
        let (code, err) = ended.expect("it sets its trap in time");
        assert_eq!(code, Some(expected), "{words}: {err}");
    }
    is_free(&cluster, "a").await;
}

/// A shell that ends at SIGTERM, and leaves a process behind that does not; its id is written down.
fn deserting(file: &Path) -> String {
    format!(
        "trap '' TERM; sleep 1000 >&- 2>&- & trap - TERM; echo $! > {0}.new; mv {0}.new {0}; wait",
        file.display()
    )
}

/// Killed when dropped, also where a test has failed: it would keep what it has inherited for long.
struct Left(Pid);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[tokio::test]
async fn who_outlives_a_command_that_was_told_to_end_dies_before_the_key_is_free() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    for (number, words) in ["a --kill-after 500ms", "a --max 1s --kill-after 500ms"].iter().enumerate() {
        let file = dir.path().join(number.to_string());
        let child = lock(&cluster, words, &deserting(&file)).spawn().unwrap();
        let left = Left(pids_in(&file).await[0]);
        if number == 0 {
            signal(&child, Signal::TERM);
        }
        let (status, _, err) = end_of(child).await;
        assert!(!lives(left.0), "{words}: {err}");
        assert_eq!(status.code(), Some(143), "{words}: {err}");
        is_free(&cluster, "a").await;
    }

    let file = dir.path().join("doubt");
    let child = lock(&cluster, "a --ttl 6s", &deserting(&file)).spawn().unwrap();
    let left = Left(pids_in(&file).await[0]);
    die_without_the_cluster(&cluster, child, &[left.0]).await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_goes_on_when_nobody_told_it_to_end() {
    let cluster = cluster().await;
    let script = "sleep 1000 >&- 2>&- & echo $!";
    let (status, out, err) = run(lock(&cluster, "a", script)).await;
    assert!(status.success(), "{err}");
    is_free(&cluster, "a").await;
    let left = Left(Pid::from_raw(out.trim().parse().unwrap()).unwrap());
    assert!(lives(left.0));
}

/// A script whose children have all left its process group, one way or another. Each runs this, and writes its id down first;
/// when all have, the script goes on with `then`.
fn scattered(dir: &Path, each: &str, then: &str) -> String {
    let [child, all, pids] = ["child", "all", "pids"].map(|name| dir.join(name).display().to_string());
    std::fs::write(&child, format!("echo $$ >> {all}\n{each}\n")).unwrap();
    format!(
        "exec >&- 2>&-; timeout 1000 sh {child} & setsid sh {child} & setsid -f sh {child}; \
         (timeout 1000 setsid -w sh {child} &); until test $(wc -l < {all}) -ge 4; do sleep 0.01; done 2>/dev/null; \
         mv {all} {pids}; {then}"
    )
}

/// Those of such a script.
async fn scattered_in(dir: &Path) -> Vec<Left> {
    pids_in(&dir.join("pids")).await.into_iter().map(Left).collect()
}

#[tokio::test]
async fn who_has_left_the_process_group_has_ended_before_the_key_is_free() {
    let cluster = cluster().await;
    let [ends, is_deaf, is_stopped] =
        ["exec sleep 1000", "trap '' TERM; sleep 1000 & wait; wait", "kill -STOP $$; exec sleep 1000"];
    for (each, then, told, expected) in [
        (ends, "wait", true, 143),
        (is_deaf, "wait", true, 143),
        (is_stopped, "wait", true, 143),
        // Nobody has told it to end; but what dies so leaves nothing behind on purpose.
        (ends, "kill -KILL $$", false, 137),
    ] {
        let dir = TempDir::new().unwrap();
        let script = scattered(dir.path(), each, then);
        let child = lock(&cluster, "a --kill-after 500ms", &script).spawn().unwrap();
        let left = scattered_in(dir.path()).await;
        if told {
            signal(&child, Signal::TERM);
        }
        let (status, _, err) = end_of(child).await;
        let living: Vec<Pid> = left.iter().map(|left| left.0).filter(|pid| lives(*pid)).collect();
        assert_eq!((status.code(), living), (Some(expected), vec![]), "{each}, {then}: {err}");
        is_free(&cluster, "a").await;
    }
}

#[tokio::test]
async fn who_has_left_the_process_group_dies_with_the_parent_of_the_command() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = scattered(dir.path(), "trap '' TERM; sleep 1000 & wait; wait", "wait");
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let left = scattered_in(dir.path()).await;
    signal(&child, Signal::KILL);
    assert_eq!(end_of(child).await.0.signal(), Some(9));
    die(&left.iter().map(|left| left.0).collect::<Vec<_>>()).await;
}

/// The processes that have this among their arguments.
fn with_argument(argument: &str) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let has_it = |pid: &Pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    pids.filter(has_it).collect()
}

#[tokio::test]
async fn who_forks_while_it_is_killed_does_not_get_away() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let time = format!("1000.{}", std::process::id());
    // Each has a session of its own, and starts the next before it is killed.
    let breeds = format!(
        "trap '' TERM; for i in 1 2 3; do setsid -f sleep {time}; done; sleep 0.01; exec setsid -f sh $0"
    );
    let script = scattered(dir.path(), &breeds, "exec sleep 1000");
    let child = lock(&cluster, "a --kill-after 500ms", &script).spawn().unwrap();
    let breeding = || async { (with_argument(&time).len() > 20).then_some(()) };
    until(SOON, "they breed", breeding).await.unwrap();
    signal(&child, Signal::TERM);
    let (status, _, err) = end_of(child).await;
    let all = [with_argument(&time), with_argument(&dir.path().join("child").display().to_string())].concat();
    let left: Vec<Left> = all.into_iter().filter(|pid| lives(*pid)).map(Left).collect();
    assert!(left.is_empty(), "{} live: {err}", left.len());
    assert_eq!(status.code(), Some(143), "{err}");
}

#[tokio::test]
async fn what_the_parent_of_the_command_is_sent_ends_nothing_unless_it_kills() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = format!("sleep 1000 & echo $$ $! $PPID > {0}.new; mv {0}.new {0}; wait", file.display());
    let child = lock(&cluster, "a", &script).spawn().unwrap();
    let [shell, sleep, parent] = pids_in(&file).await.try_into().unwrap();
    let (left, own) = ([Left(shell), Left(sleep)], child.id().unwrap().to_string());
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap();
    assert_eq!(stat.rsplit(')').next().unwrap().split_whitespace().nth(1), Some(own.as_str()), "{stat}");
    for sent in [Signal::HUP, Signal::INT, Signal::TERM, Signal::USR1, Signal::TSTP] {
        kill_process(parent, sent).unwrap();
    }
    assert!(left.iter().all(|left| lives(left.0)));
    kill_process(parent, Signal::KILL).unwrap();
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(137), "{err}");
    die(&left.each_ref().map(|left| left.0)).await;
    is_free(&cluster, "a").await;
}

/// In a pid namespace, where pids can be chosen.
#[tokio::test]
async fn who_has_the_pid_of_a_dead_command_is_not_killed_for_it() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pids");
    let script = format!("echo $$ $PPID > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let first = format!(
        r#"(exec "$@") >&2 & lock=$!
        until test -e {0}; do sleep 0.05; done
        read command supervisor < {0}
        kill -STOP $lock; kill -KILL $supervisor
        while test -e /proc/$command; do sleep 0.05; done
        until test "$stranger" = $command; do
            echo $((command - 1)) > /proc/sys/kernel/ns_last_pid || exit 9
            setsid sleep 1000 & stranger=$!
        done
        until test "$(cut -d ' ' -f 5 /proc/$command/stat)" = $command; do sleep 0.05; done
        kill -CONT $lock; wait $lock; status=$?
        kill -0 $stranger && grep -q 'State:.S' /proc/$stranger/status && echo $status; exit 0"#,
        file.display()
    );
    let mut command = after(&first, lock(&cluster, "a --ttl 60s", &script), "").into_std();
    let mut within = Command::new("unshare");
    within.args(["--fork", "--pid", "--mount-proc", "--kill-child"]).arg(command.get_program());
    within.args(command.get_args());
    within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command = within.into_std();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (_, out, err) = run(command.into()).await;
    assert_eq!(out, "137\n", "{err}");
}

#[tokio::test]
async fn nothing_is_started_where_proc_shows_other_pids() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let cluster = cluster().await;
    let (status, out, err) = run(after("", lock(&cluster, "a", "echo ran"), "unshare --fork --pid")).await;
    assert_eq!((status.code(), out.as_str()), (Some(125), ""), "{err}");
    assert!(err.contains("mount"), "{err}");
    let proc = "unshare --fork --pid --mount-proc";
    let (status, out, err) = run(after("", lock(&cluster, "a", "echo ran"), proc)).await;
    assert_eq!((status.code(), out.as_str()), (Some(0), "ran\n"), "{err}");
}

#[tokio::test]
async fn who_was_there_before_is_no_descendant() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let (earlier, own) = (dir.path().join("earlier"), dir.path().join("own"));
    let first = format!("sleep 1000 >&- 2>&- & echo $! > {}", earlier.display());
    let script = format!("echo $$ > {}; exec sleep 1000", own.display());
    let child = after(&first, lock(&cluster, "a", &script), "").spawn().unwrap();
    let earlier = Left(pids_in(&earlier).await[0]);
    text_of(&own).await;
    signal(&child, Signal::TERM);
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(143), "{err}");
    assert!(lives(earlier.0));
}

/// In `dir`, what a user without rights can run: the program; and words for a shell that become root, write to `up` there
/// whether they are (0), and go on until there is a file `go`.
async fn for_nobody(dir: &Path) -> (PathBuf, String) {
    let [program, setpriv, file, go] = ["ringfence", "setpriv", "up", "go"].map(|name| dir.join(name));
    let which = Command::new("sh").args(["-c", "command -v setpriv"]).output().await.unwrap();
    std::fs::copy(PROGRAM, &program).unwrap();
    std::fs::copy(String::from_utf8(which.stdout).unwrap().trim(), &setpriv).unwrap();
    for (path, mode) in [(dir, 0o777), (program.as_path(), 0o755), (setpriv.as_path(), 0o4755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let waits = format!(
        "until test -e {1}; do grep -q Uid:.0.0 /proc/$$/status; echo $? > {0}; sleep 0.05; done",
        file.display(),
        go.display()
    );
    (program, format!("{} --reuid 0 sh -c '{waits}'", setpriv.display()))
}

#[tokio::test]
async fn who_became_another_user_is_told_of_and_waited_for() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [file, go] = ["up", "go"].map(|name| dir.path().join(name));
    let (program, becomes_root) = for_nobody(dir.path()).await;
    let script = format!("{becomes_root} & wait");
    let usual = lock(&cluster, "a --kill-after 300ms", &script).into_std();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(&program).args(usual.get_args());
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    if text_of(&file).await != "0\n" {
        std::fs::write(&go, "").unwrap();
        return eprintln!("skipped: programs here cannot become another user");
    }
    signal(&child, Signal::TERM);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = String::new();
    while !told.contains("killing") {
        let line = tokio::time::timeout(SOON, lines.next_line()).await.expect("it is told").unwrap();
        told += &line.expect("it goes on");
    }
    assert!(told.contains("cannot signal"), "{told}");
    assert_eq!(view(&cluster, "a").await.holders.len(), 1);
    std::fs::write(&go, "").unwrap();
    assert_eq!(end_of(child).await.0.code(), Some(143));
    is_free(&cluster, "a").await;
}

/// Pipes in which nothing more can be written: that nobody reads, and that nobody will.
fn pipes_in_vain() -> (std::io::PipeReader, [std::io::PipeWriter; 2]) {
    let (reader, full) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut writer = &full;
    while std::io::Write::write(&mut writer, &[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
    let (_, broken) = std::io::pipe().unwrap();
    (reader, [full, broken])
}

#[tokio::test]
async fn a_command_ends_with_its_lease_also_where_nothing_can_be_told() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let (_reader, pipes) = pipes_in_vain();
    let mut children = Vec::new();
    for (key, pipe) in ["a", "b"].into_iter().zip(pipes) {
        let file = dir.path().join(key);
        let mut command = lock(&cluster, &format!("{key} --ttl 6s"), &stubborn(&file));
        children.push((key, command.stderr(pipe).spawn().unwrap(), pids_in(&file).await));
    }
    let (lateness, stopped) = (Lateness::start(), Instant::now());
    for node in cluster.nodes() {
        node.stop().unwrap();
    }
    for (_, _, pids) in &children {
        die(pids).await;
    }
    lateness.check(stopped);
    for (key, child, _) in children {
        assert_eq!(end_of(child).await.0.code(), Some(76), "{key}");
    }
    for node in cluster.nodes() {
        node.resume().unwrap();
    }
    take(&cluster, "c").await;
    let (_reader, [_, broken]) = pipes_in_vain();
    let mut command = lock(&cluster, "c --try", "true");
    command.stderr(broken);
    assert_eq!(code(command).await, 75);
}

/// `lock`, from a shell that does this first, and by way of these words.
fn after(first: &str, command: Command, by_way_of: &str) -> Command {
    let command = command.into_std();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("{first}\nexec {by_way_of} \"$@\""), "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    shell
}

#[tokio::test]
async fn what_is_ignored_as_under_nohup_stays_so() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pid");
    let script = format!("trap 'exit 5' USR1; echo $$ > {}; while :; do sleep 0.05; done", file.display());
    let child = after("trap '' HUP INT", lock(&cluster, "a", &script), "").spawn().unwrap();
    text_of(&file).await;
    for sent in [Signal::HUP, Signal::INT, Signal::USR1] {
        signal(&child, sent);
    }
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(5), "{err}");
}

#[tokio::test]
async fn who_waited_while_the_program_was_replaced_can_start_its_command() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("ringfence");
    std::fs::copy(PROGRAM, &program).unwrap();
    let (lease_id, _) = take(&cluster, "a").await;
    let usual = lock(&cluster, "a", "echo ran").into_std();
    let mut command = Command::new(&program);
    command.args(usual.get_args()).envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let child = command.spawn().unwrap();
    waiters(&cluster, "a", 1).await;
    std::fs::remove_file(&program).unwrap();
    cluster.node(1).client().release(lease_id).await.done();
    let (status, out, err) = end_of(child).await;
    assert_eq!((status.code(), out.as_str()), (Some(0), "ran\n"), "{err}");
}

#[tokio::test]
async fn what_cannot_be_asked_for_is_no_status_of_a_command() {
    let cluster = cluster().await;
    for (words, told) in [("a --no-such-flag", "--no-such-flag"), ("a --ttl 1999ms", "--ttl")] {
        let (status, out, err) = run(lock(&cluster, words, "echo ran")).await;
        assert_eq!((status.code(), out.as_str()), (Some(125), ""), "{err}");
        assert!(err.contains(told), "{err}");
    }
    let help = Command::new(PROGRAM).args(["lock", "--help"]).output().await.unwrap();
    assert!(help.status.success() && !help.stdout.is_empty());
}

#[tokio::test]
async fn without_a_terminal_a_command_is_stopped_and_continued_by_way_of_this_one() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("pid");
    // A shell that starts a command, by vfork, waits in a state of its own for a child that was stopped before it is that.
    let script =
        format!("trap 'kill $!; exit 5' USR1; sleep 1000 >&- 2>&- & echo $$ > {}; wait", file.display());
    let child = after("", lock(&cluster, "a", &script), "setsid").spawn().unwrap();
    let pid = pids_in(&file).await[0].as_raw_nonzero().get().unsigned_abs();
    for (sent, is_stopped) in [(Signal::TSTP, true), (Signal::CONT, false)] {
        signal(&child, sent);
        let look = || async { ((state(pid) == Some('T')) == is_stopped).then_some(()) };
        until(SOON, format!("{sent:?} has reached it"), look).await.unwrap();
    }
    signal(&child, Signal::USR1);
    let (status, _, err) = end_of(child).await;
    assert_eq!(status.code(), Some(5), "{err}");
}

/// A terminal, a shell in it, and what is typed there.
struct Typed {
    script: Child,
    shown: Arc<Mutex<String>>,
}

impl Typed {
    fn start(cluster: &Cluster, shell: &str) -> Self {
        let urls: Vec<String> = cluster.nodes().iter().map(|node| node.url()).collect();
        let mut command = Command::new("script");
        command
            .args(["-qec", shell, "/dev/null"])
            .env("PROGRAM", PROGRAM)
            .env("RINGFENCE_URLS", urls.join(","));
        command.env("PS1", "").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut script = command.spawn().unwrap();
        let mut out = script.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        tokio::spawn(async move {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut out, &mut bytes).await {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { script, shown }
    }

    async fn types(&mut self, text: &str) {
        let keyboard = self.script.stdin.as_mut().unwrap();
        tokio::io::AsyncWriteExt::write_all(keyboard, text.as_bytes()).await.unwrap();
    }

    /// Waits until it is shown. What is typed is shown, too.
    async fn shows(&self, text: &str) {
        let look = || async { self.shown.lock().unwrap().contains(text).then_some(()) };
        let seen = until(SOON, format!("{text:?} is shown"), look).await;
        assert!(seen.is_ok(), "{text:?} is not in {:?}", self.shown.lock().unwrap());
    }
}

/// A script that locks `a` for a command, and goes on then; and how to run it.
fn script_in(dir: &TempDir, lock: &str, command: &str) -> String {
    let [script, of_lock] = ["script", "command"].map(|name| dir.path().join(name));
    std::fs::write(&of_lock, command).unwrap();
    std::fs::write(&script, format!("{lock} sh {}\necho went on\n", of_lock.display())).unwrap();
    format!("sh {}", script.display())
}

#[tokio::test]
async fn ctrl_c_ends_a_script_whose_command_it_ended_and_one_that_waits() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = script_in(&dir, "$PROGRAM lock a --", "echo up; exec sleep 1000");
    for waits in [false, true] {
        if waits {
            take(&cluster, "a").await;
        }
        let mut typed = Typed::start(&cluster, &script);
        if waits {
            waiters(&cluster, "a", 1).await;
        } else {
            typed.shows("up").await;
        }
        typed.types("\x03").await;
        tokio::time::timeout(SOON, typed.script.wait()).await.expect("it ends").unwrap();
        let shown = typed.shown.lock().unwrap().clone();
        assert!(!shown.contains("went on"), "{shown}");
    }
}

#[tokio::test]
async fn ctrl_z_stops_a_script_and_the_command_in_it_and_fg_continues_both() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let script = script_in(&dir, "$PROGRAM lock a --ttl 60s --", "echo up; read x; echo got $x");
    let mut typed = Typed::start(&cluster, "bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    typed.types("\x1a").await;
    typed.shows("Stopped").await;
    typed.types("echo ba''ck\n").await;
    typed.shows("back").await;
    typed.types("fg\n").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    typed.shows("went on").await;
}

#[tokio::test]
async fn ctrl_z_keeps_the_lease_of_a_command_that_became_another_user_in_part() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let [file, go] = ["up", "go"].map(|name| dir.path().join(name));
    let (program, becomes_root) = for_nobody(dir.path()).await;
    let command = format!("{becomes_root} & echo up; read x; echo got $x; wait");
    let script = script_in(&dir, &format!("{} lock a --ttl 60s --", program.display()), &command);
    let mut typed = Typed::start(&cluster, "exec setpriv --reuid 65534 --clear-groups bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    if text_of(&file).await != "0\n" {
        std::fs::write(&go, "").unwrap();
        return eprintln!("skipped: programs here cannot become another user");
    }
    typed.types("\x1a").await;
    typed.shows("Stopped").await;
    assert_eq!(view(&cluster, "a").await.holders.len(), 1);
    typed.types("fg\n").await;
    typed.shows("cannot signal").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    std::fs::write(&go, "").unwrap();
    typed.shows("went on").await;
    is_free(&cluster, "a").await;
}

#[tokio::test]
async fn a_command_in_a_pipe_gets_the_terminal_when_it_asks_for_it() {
    let cluster = cluster().await;
    let dir = TempDir::new().unwrap();
    let command = "echo up; read x </dev/tty; echo got $x";
    let script = script_in(&dir, "true | $PROGRAM lock a --ttl 60s --", command);
    let mut typed = Typed::start(&cluster, "bash --norc -i");
    typed.types(&format!("{script}\n")).await;
    typed.shows("up").await;
    typed.types("said\n").await;
    typed.shows("got said").await;
    typed.shows("went on").await;
}

#[tokio::test]
async fn a_lease_is_kept_for_longer_than_its_time_to_live() {
    let cluster = cluster().await;
    let child = lock(&cluster, "a --ttl 6s", "sleep 10; echo $RINGFENCE_TOKEN").spawn().unwrap();
    let held = || async { view(&cluster, "a").await.holders.first().map(|holder| holder.token) };
    let token = until(SOON, "it holds", held).await.unwrap();
    let (status, out, err) = end_of(child).await;
    assert!(status.success(), "{err}");
    assert_eq!(out.trim(), token.to_string());
    assert_eq!(view(&cluster, "a").await.fence, Token(token.0 + 2), "granted and released, and nothing else");
}
