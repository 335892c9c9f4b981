//! `ringfence demo`: its story comes out as told, and nothing of it is left behind, however it ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// It promises half a minute on a machine that has nothing else to do.
const SOON: Duration = Duration::from_secs(60);

/// A running `ringfence demo` with a temporary directory of its own, killed when dropped.
struct Demo {
    child: Child,
    temporary: TempDir,
    began: Instant,
}

impl Demo {
    fn start() -> (Self, BufReader<ChildStdout>) {
        let temporary = tempfile::tempdir().unwrap();
        // As /tmp: PostgreSQL, which does not run as root, is to get in.
        set_permissions(temporary.path(), Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .arg("demo")
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        (Self { child, temporary, began: Instant::now() }, told)
    }

    /// The lines up to one that contains `last`, or to the end.
    fn lines_to(&self, told: BufReader<ChildStdout>, last: &str) -> Vec<String> {
        let (lines, read) = mpsc::channel();
        std::thread::spawn(move || told.lines().try_for_each(|line| lines.send(line.unwrap())));
        let mut all: Vec<String> = Vec::new();
        while !all.last().is_some_and(|line| line.contains(last)) {
            match read.recv_timeout(SOON.saturating_sub(self.began.elapsed())) {
                Ok(line) => all.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("not over in time:\n{}", all.join("\n")),
            }
        }
        all
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// How it ended, and what it complained of.
    fn ended(&mut self) -> (ExitStatus, String) {
        let status = self.wait_for("the demo has ended", |demo| demo.child.try_wait().unwrap());
        let mut complaints = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        (status, complaints)
    }

    /// The processes that were told to put their data into this demo's directory: nodes and writers.
    fn processes(&self) -> Vec<String> {
        let directory = self.temporary.path().to_str().unwrap();
        let command_lines = std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| std::fs::read(entry.unwrap().path().join("cmdline")).ok());
        command_lines
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .filter(|line| line.contains(directory))
            .collect()
    }

    fn is_tidy(&self) -> bool {
        self.temporary.path().read_dir().unwrap().next().is_none()
    }

    fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(seen) = look(self) {
                return seen;
            }
            assert!(self.began.elapsed() < SOON, "not in time: {what}; there are {:#?}", self.processes());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_late_write_is_rejected_where_tokens_are_checked_and_tokens_outlive_every_kill() {
    let (mut demo, told) = Demo::start();
    let lines = demo.lines_to(told, "nothing says this");
    let all = lines.join("\n");
    let (status, complaints) = demo.ended();
    assert!(status.success(), "{status}: {complaints}\n{all}");
    assert_eq!((demo.processes(), demo.is_tidy()), (Vec::new(), true));

    let after =
        |line: &str| *lines_with(&lines, line).first().unwrap_or_else(|| panic!("no `{line}` in\n{all}"));
    let token = |line: &str| number_after(after(line), "token ");
    let (a, b) = (token("A acquires accounts/42"), token("B acquires"));
    assert!(b > a, "{b} > {a}");
    let rejected = after("REJECTED");
    assert_eq!((number_after(rejected, "A writes "), number_after(rejected, "with ")), (150, a));
    assert!(rejected.contains("A writes 150: accepted,"), "{rejected}");
    assert!(after("is below the fence").contains(&format!("{a} is below the fence, {b}")));
    let hold = after("It holds");
    assert!(hold.contains("It holds 130") && hold.contains("It holds 150: B's 30 are lost"), "{hold}");

    let c = token("C acquires");
    let d = after("D acquires");
    let (first, last) = (number_after(d, "tokens "), number_after(d, " to "));
    let e = token("E acquires");
    assert!(b < c && c < first && first + 49 <= last && last < e, "{b} < {c} < {first}..{last} < {e}");
    assert!(all.contains("All 52 leases that were live still are"), "{all}");
    // As installed by ./test. Where one is missing the demo says so.
    let databases = ["redis-server", "PostgreSQL"].iter().filter(|name| {
        !all.contains(&format!("Install {name} ")) && !all.contains(&format!("and {name} to see"))
    });
    let databases = databases.count();
    assert_eq!(lines_with(&lines, "The same late write, at").len(), databases, "{all}");
    assert_eq!(lines_with(&lines, &format!("every token below {b} is dead")).len(), databases, "{all}");
    assert_eq!(lines_with(&lines, "  ok  ").len(), 8 + databases, "{all}");

    assert!(!all.contains('\x1b'), "no colours where there is no terminal");
    let widest = lines.iter().max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 80, "{widest}");
}

#[test]
fn nothing_of_it_is_left_however_it_is_ended() {
    for (moment, signal, code) in [
        ("B asks another node", "-INT", Some(130)),
        ("is the leader: kill -9", "-TERM", Some(143)),
        ("B asks another node", "-KILL", None),
    ] {
        let (mut demo, told) = Demo::start();
        let lines = demo.lines_to(told, moment);
        assert!(lines.last().is_some_and(|line| line.contains(moment)), "{lines:#?}");
        // At that moment there are nodes, and writers one of which is stopped.
        assert!(demo.processes().len() >= 2, "{:#?}", demo.processes());
        demo.signal(signal);
        let (status, complaints) = demo.ended();
        assert_eq!(status.code(), code);
        if code.is_some() {
            assert_eq!(complaints, "");
            assert_eq!((demo.processes(), demo.is_tidy()), (Vec::new(), true), "after {signal}");
        } else {
            // The kernel ends them, as soon as it gets to it.
            demo.wait_for("its processes end with it", |demo| demo.processes().is_empty().then_some(()));
        }
    }
}

#[test]
fn it_ends_quietly_when_nobody_reads_on() {
    let (mut demo, mut told) = Demo::start();
    while told.read_line(&mut String::new()).unwrap() <= 1 {}
    drop(told);
    let (status, complaints) = demo.ended();
    assert_eq!((status.code(), complaints.as_str()), (Some(1), ""), "not all was shown to be true");
    assert_eq!((demo.processes(), demo.is_tidy()), (Vec::new(), true));
}

fn lines_with<'a>(lines: &'a [String], part: &str) -> Vec<&'a str> {
    lines.iter().map(String::as_str).filter(|line| line.contains(part)).collect()
}

fn number_after(line: &str, word: &str) -> u64 {
    let (_, rest) = line.split_once(word).unwrap_or_else(|| panic!("no `{word}` in `{line}`"));
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().unwrap_or_else(|_| panic!("no number after `{word}` in `{line}`"))
}
