//! `ringfence demo`: its output is correct, and it leaves nothing behind, however it ends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::PROGRAM;

/// Ten times what it may take on an idle machine.
const SOON: Duration = Duration::from_secs(300);

/// A running `ringfence demo` with its own temporary directory, killed when dropped.
struct Demo {
    child: Child,
    temporary: TempDir,
    began: Instant,
}

impl Demo {
    fn start() -> (Self, BufReader<ChildStdout>) {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = Command::new(PROGRAM)
            .arg("demo")
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (Self { child, temporary, began: Instant::now() }, stdout)
    }

    /// The lines up to the first that contains `last`, or to the end.
    fn lines_to(&self, stdout: BufReader<ChildStdout>, last: &str) -> Vec<String> {
        let (lines, read) = mpsc::channel();
        std::thread::spawn(move || stdout.lines().try_for_each(|line| lines.send(line.unwrap())));
        let mut all: Vec<String> = Vec::new();
        while !all.last().is_some_and(|line| line.contains(last)) {
            match read.recv_timeout(SOON.saturating_sub(self.began.elapsed())) {
                Ok(line) => all.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("timeout after:\n{}", all.join("\n")),
            }
        }
        all
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Its exit status and standard error.
    fn ended(&mut self) -> (ExitStatus, String) {
        let status = self.wait_for("the demo has ended", |demo| demo.child.try_wait().unwrap());
        let mut complaints = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        (status, complaints)
    }

    /// The processes of this demo, nodes and writers: those whose arguments name its directory.
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
            assert!(self.began.elapsed() < SOON, "timeout: {what}; running: {:#?}", self.processes());
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
fn a_late_write_is_rejected_and_tokens_rise_through_every_kill() {
    let (mut demo, stdout) = Demo::start();
    let lines = demo.lines_to(stdout, "no line contains this");
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
    assert_eq!(lines_with(&lines, "  ok  ").len(), 8, "{all}");

    assert!(!all.contains('\x1b'), "no colours without a terminal");
    let widest = lines.iter().max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 80, "{widest}");
}

#[test]
fn nothing_is_left_behind_after_any_signal() {
    for (moment, signal, code) in [
        ("B asks another node", "-INT", Some(130)),
        ("is the leader: kill -9", "-TERM", Some(143)),
        ("B asks another node", "-KILL", None),
    ] {
        let (mut demo, stdout) = Demo::start();
        let lines = demo.lines_to(stdout, moment);
        assert!(lines.last().is_some_and(|line| line.contains(moment)), "{lines:#?}");
        // Now nodes run, and in part 1 a writer is stopped.
        assert!(demo.processes().len() >= 2, "{:#?}", demo.processes());
        demo.signal(signal);
        let (status, complaints) = demo.ended();
        assert_eq!(status.code(), code);
        if code.is_some() {
            assert_eq!(complaints, "");
            assert_eq!((demo.processes(), demo.is_tidy()), (Vec::new(), true), "after {signal}");
        } else {
            // The kernel kills them, a little later.
            demo.wait_for("its processes end with it", |demo| demo.processes().is_empty().then_some(()));
        }
    }
}

#[test]
fn it_exits_quietly_when_its_reader_is_gone() {
    let (mut demo, mut stdout) = Demo::start();
    while stdout.read_line(&mut String::new()).unwrap() <= 1 {}
    drop(stdout);
    let (status, complaints) = demo.ended();
    assert_eq!(
        (status.code(), complaints.as_str()),
        (Some(1), ""),
        "it must fail, as not every claim was printed"
    );
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
