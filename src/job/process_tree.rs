//! Signals for all descendants of a process, in any process group or session.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, test_kill_process, waitpid,
};
use rustix::time::{ClockId, clock_gettime};

/// How the command line of a supervisor begins, as in proc_pid_cmdline(5).
const SUPERVISOR: &[u8] = b"ringfence\0supervise\0";
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A process, from proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    /// `None` if the group is outside this pid namespace.
    group: Option<Pid>,
    /// Start time, which distinguishes it from a later process with the same pid.
    start: u64,
    is_zombie: bool,
}

/// A process that is signalled, but no later one with its pid. The kernel ensures that with a pidfd. Where it gives none (before
/// Linux 5.3, or in a sandbox), the start time is compared just before: a signal goes astray only if the process is reaped and
/// its pid reused between these two calls.
#[derive(Debug)]
pub(super) struct Target {
    process: Process,
    pidfd: Option<OwnedFd>,
}

/// Which descendants get a signal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whom {
    /// All but those below another supervisor: its `lock`, which gets the signal, passes it on to them.
    Own,
    /// All but supervisors, which never need to stop, and go on watching deadlines.
    All,
}

/// Sends `signal` to descendants of `root`, oldest first, so that a command that waits for its children dies of the signal and not
/// of their deaths. Each gets it once, also if it lost its parent meanwhile; one that is forked afterwards does not. Fails if some
/// of them may not be signalled, after signalling all others.
pub(super) fn signal(root: Pid, signal: Signal, whom: Whom) -> io::Result<()> {
    let (begun, mut sent, mut result) = (ticks(), Sent::default(), Ok(()));
    loop {
        let all: Vec<Process> = living()?.collect();
        let mut found = match whom {
            Whom::Own => descendants(root, &all, Process::is_supervisor),
            Whom::All => descendants(root, &all, |_| false),
        };
        found.retain(|process| !process.is_supervisor());
        // While the processes were read, some may have been between two parents.
        if !sent.processes.is_empty() {
            found.retain(|process| process.start < begun && !sent.has(process));
        }
        if found.is_empty() {
            return result;
        }
        found.sort_by_key(|process| process.start);
        result = result.and(send(&found, &all, signal, &mut sent));
    }
}

/// Who got a signal.
#[derive(Debug, Default)]
struct Sent {
    /// By pid and start time. The parent and the group may change.
    processes: HashSet<(Pid, u64)>,
    groups: HashSet<Pid>,
}

impl Sent {
    fn has(&self, process: &Process) -> bool {
        self.processes.contains(&(process.pid, process.start))
            || process.group.is_some_and(|group| self.groups.contains(&group))
    }
}

/// The time now, in the unit of [`Process::start`].
fn ticks() -> u64 {
    let (now, per_second) = (clock_gettime(ClockId::Boottime), clock_ticks_per_second());
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * per_second + u64::try_from(now.tv_nsec).unwrap_or_default() * per_second / 1_000_000_000
}

/// Reaps the children of this process that have exited, except one that it waits for.
pub(super) fn reap_children_except(own: Option<Pid>) {
    let this = Pid::as_raw(Some(getpid()));
    let Ok(processes) = processes() else { return };
    for process in processes.filter(|process| process.parent == this && process.is_zombie) {
        if Some(process.pid) != own {
            let _ = waitpid(Some(process.pid), WaitOptions::NOHANG);
        }
    }
}

/// `None` unless `pid` is a child of `parent`: the pid may have been reused.
pub(super) fn open_child(pid: Pid, parent: Pid) -> Option<Target> {
    let process = Process::read(pid).filter(|process| process.parent == Pid::as_raw(Some(parent)));
    Target::open(process?).ok()
}

/// Kills all descendants of a process repeatedly: a fork may escape one kill, but not all.
#[derive(Debug)]
pub(super) struct RepeatedKill {
    root: Pid,
    killed: Vec<Process>,
    /// Time until the next kill. It doubles while the same processes are left: they cannot be killed, or not soon.
    pub(super) pause: Duration,
}

impl RepeatedKill {
    pub(super) fn new(root: Pid) -> Self {
        Self { root, killed: Vec::new(), pause: FIRST_PAUSE }
    }

    /// Kills the descendants alive now. Fails like [`signal`].
    pub(super) fn kill(&mut self) -> io::Result<()> {
        let root = Pid::as_raw(Some(self.root));
        let mut all = Vec::new();
        // A process that forks and exits, again and again, is an orphan, and has a child before thousands of others are read.
        for process in living()? {
            if process.parent == root {
                let _ = Target::open(process).and_then(|orphan| orphan.signal(Signal::KILL));
            }
            all.push(process);
        }
        let mut found = descendants(self.root, &all, |_| false);
        // Youngest first: a process that forks and exits is among them.
        found.sort_by_key(|process| Reverse(process.start));
        let sent = send(&found, &all, Signal::KILL, &mut Sent::default());
        self.pause = if found == self.killed { (2 * self.pause).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        self.killed = found;
        sent
    }
}

/// Signals a group at once if it has no other members, else each process.
fn send(to: &[Process], all: &[Process], signal: Signal, sent: &mut Sent) -> io::Result<()> {
    let ours: HashSet<Pid> = to.iter().map(|process| process.pid).collect();
    let strangers = all.iter().filter(|process| !ours.contains(&process.pid));
    let shared: HashSet<Pid> = strangers.filter_map(|process| process.group).collect();
    let mut result = Ok(());
    for process in to {
        let group = process.group.filter(|group| !shared.contains(group));
        sent.processes.insert((process.pid, process.start));
        match process.send(signal, group, &mut sent.groups) {
            // It has exited.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => result = Err(error.into()),
        }
    }
    result
}

impl Target {
    /// Fails with [`Errno::SRCH`] if `process` is gone.
    fn open(process: Process) -> Result<Self, Errno> {
        let pidfd = match pidfd_open(process.pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Err(Errno::SRCH),
            opened => opened.ok(),
        };
        // The pid may have been reused before it was opened.
        if process.exists() { Ok(Self { process, pidfd }) } else { Err(Errno::SRCH) }
    }

    /// Fails with [`Errno::SRCH`] if it is gone.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        match self.pidfd.as_ref().map(|pidfd| pidfd_send_signal(pidfd, signal)) {
            Some(sent @ (Ok(()) | Err(Errno::SRCH))) => sent,
            // A sandbox may refuse this call, too.
            _ if self.process.exists() => kill_process(self.process.pid, signal),
            _ => Err(Errno::SRCH),
        }
    }
}

impl Process {
    /// Whether it is not reaped. Its parent and its group may have changed, as when its parent dies of the same signal.
    fn exists(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.start == self.start)
    }

    /// Signals the whole `group` if one is given: once, so that no member escapes by forking.
    fn send(&self, signal: Signal, group: Option<Pid>, signalled: &mut HashSet<Pid>) -> Result<(), Errno> {
        let target = Target::open(*self)?;
        // It may have joined another group meanwhile.
        let now = || Self::read(self.pid).filter(|now| now.start == self.start)?.group;
        let Some(group) = group.filter(|group| now() == Some(*group)) else { return target.signal(signal) };
        if signalled.insert(group) {
            // Succeeds if at least one member may be signalled, so the result says nothing about this one.
            let _ = kill_process_group(group, signal);
        }
        test_kill_process(self.pid)
    }

    /// Whether it supervises the command of another `lock`. SIGKILL goes to a process that only pretends to, too.
    fn is_supervisor(&self) -> bool {
        fs::read(format!("/proc/{}/cmdline", self.pid)).is_ok_and(|line| line.starts_with(SUPERVISOR))
    }

    /// `None` if there is no process with this pid.
    fn read(pid: Pid) -> Option<Self> {
        let mut line = [0; 1024];
        let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&line[..length]))
    }

    /// The program's name, in brackets, may contain brackets and spaces.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        let id = |place| i32::try_from(number(place)?).ok();
        // A process whose first thread exited before the others also has the state of a zombie.
        let is_zombie = matches!(fields.first(), None | Some(&("Z" | "X"))) && number(17)? <= 1;
        Some(Self { pid, parent: id(1)?, group: Pid::from_raw(id(2)?), start: number(19)?, is_zombie })
    }
}

/// All processes that have not exited, as [`processes`].
fn living() -> io::Result<impl Iterator<Item = Process>> {
    Ok(processes()?.filter(|process| !process.is_zombie))
}

/// All processes, each read when it is taken, the latest first: pids are given out in order, and from the start again after the
/// highest.
fn processes() -> io::Result<impl Iterator<Item = Process>> {
    let names = fs::read_dir("/proc")?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    // Skips other names.
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok());
    let mut numbers: Vec<i32> = numbers.collect();
    let latest = latest_pid().unwrap_or(i32::MAX);
    numbers.sort_unstable_by_key(|pid| (*pid > latest, Reverse(*pid)));
    // Skips processes that exited meanwhile.
    Ok(numbers.into_iter().filter_map(|pid| Process::read(Pid::from_raw(pid)?)))
}

/// The pid that was given out last, from proc_loadavg(5).
fn latest_pid() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().last()?.parse().ok()
}

/// All descendants of `root`, parents before children, without those below a process that `hides` them.
fn descendants(root: Pid, processes: &[Process], hides: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = children.remove(&Pid::as_raw(Some(root))).unwrap_or_default();
    let mut visited = 0;
    while let Some(process) = found.get(visited) {
        if !hides(process) {
            let its_children = children.remove(&Pid::as_raw(Some(process.pid)));
            found.extend(its_children.into_iter().flatten());
        }
        visited += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};

    use super::*;

    fn pid(raw: i32) -> Pid {
        Pid::from_raw(raw).unwrap()
    }

    #[test]
    fn stat_lines_are_parsed_and_zombies_recognized() {
        let stat = |state: &str, threads: u32| {
            let name = "a) R 1 99 (b";
            format!(
                "78 ({name}) {state} 5 77 5 0 -1 4194560 107 0 0 0 0 0 0 0 20 0 {threads} 0 65938 2703360 223"
            )
        };
        let process =
            Process { pid: pid(78), parent: 5, group: Some(pid(77)), start: 65938, is_zombie: false };
        for state in ["R", "S", "D", "T"] {
            assert_eq!(Process::parse(pid(78), &stat(state, 1)), Some(process));
        }
        for state in ["Z", "X"] {
            assert!(Process::parse(pid(78), &stat(state, 1)).unwrap().is_zombie);
        }
        assert_eq!(Process::parse(pid(78), &stat("Z", 2)), Some(process), "its other threads are running");
        assert_eq!(Process::parse(pid(78), ""), None);
        let own = rustix::process::getpid();
        assert_eq!(
            Process::read(own).map(|process| process.parent),
            Some(Pid::as_raw(rustix::process::getppid()))
        );
    }

    /// A parent that dies of the signal leaves its children to another.
    #[test]
    fn a_process_with_another_parent_is_the_same_and_one_that_started_later_is_not() {
        let own = Process::read(rustix::process::getpid()).unwrap();
        assert!(Target::open(Process { parent: own.parent + 1, group: None, ..own }).is_ok());
        let later = Process { start: own.start + 1, ..own };
        assert_eq!(Target::open(later).unwrap_err(), Errno::SRCH);
        // A signal that does nothing.
        for pidfd in [None, Target::open(own).unwrap().pidfd] {
            assert_eq!(Target { process: own, pidfd }.signal(Signal::WINCH), Ok(()));
        }
        assert_eq!(Target { process: later, pidfd: None }.signal(Signal::WINCH), Err(Errno::SRCH));
    }

    /// Whoever is in that group now may be no descendant.
    #[test]
    fn the_group_that_a_process_has_left_is_not_signalled() {
        let sleep = || std::process::Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut left, mut moved) = (sleep(), sleep());
        let process = Process::read(Pid::from_child(&moved)).unwrap();
        let group = Some(Pid::from_child(&left));
        let sent = send(&[Process { group, ..process }], &[], Signal::KILL, &mut Sent::default());
        assert_eq!(moved.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert!(left.try_wait().unwrap().is_none());
        left.kill().unwrap();
        left.wait().unwrap();
        sent.unwrap();
    }

    #[test]
    fn descendants_are_found_in_any_order_and_nothing_else() {
        let process =
            |own, parent| Process { pid: pid(own), parent, group: None, start: 0, is_zombie: false };
        let all = [process(9, 4), process(4, 2), process(2, 1), process(3, 1), process(5, 2), process(6, 3)];
        let found = |root, hidden| {
            let found = descendants(pid(root), &all, |process| process.pid == pid(hidden));
            let mut found: Vec<i32> = found.iter().map(|process| Pid::as_raw(Some(process.pid))).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(2, 3), [4, 5, 9]);
        assert_eq!(found(2, 4), [4, 5], "what is below it is hidden");
        assert!(found(9, 3).is_empty());
    }
}
