//! Standard error that blocks nobody but a thread of its own: its reader may hang (a container runtime, a log collector, a
//! disk, a terminal after Ctrl-S), and the work that is logged must not.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, Write};
use std::mem;
use std::panic::{self, PanicHookInfo};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::measure::LOG_LINES_LOST;

/// The most bytes that wait, besides those that are being written. Further lines are lost.
const CAPACITY: usize = 1 << 20;
/// How long the end of the program waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait if somebody has made standard error non-blocking, and it is full.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The target of the message that lines are lost.
pub(crate) const TARGET: &str = module_path!();

/// The thread that writes lines of this program, and messages of panics. When this is dropped, what waits is written.
#[derive(Debug)]
pub(crate) struct Stderr(Arc<Queue>);

/// Lines for the thread, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Lines that did not fit, and would stand after `lines`.
    lost: u64,
    is_closed: bool,
    /// After `is_closed`: all lines are written.
    is_flushed: bool,
}

impl Stderr {
    pub(crate) fn start() -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let lines = Arc::clone(&queue);
        ringfence_aside::start("stderr", move || {
            // A background job may write even if the terminal stops such jobs (`stty tostop`).
            let background: SigSet = [Signal::SIGTTOU].into_iter().collect();
            let _ = background.thread_block();
            lines.write_all(&mut io::stderr());
        })?;
        let lines = Arc::clone(&queue);
        panic::set_hook(Box::new(move |panic| lines.push(told(panic).as_bytes())));
        Ok(Self(queue))
    }

    /// Queues one line, after `ringfence: `.
    pub(crate) fn print(&self, message: impl Display) {
        self.0.push(format!("ringfence: {message}\n").as_bytes());
    }

    /// Takes lines from anywhere in the program.
    pub(crate) fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.0)
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.is_closed = true;
        self.0.changed.notify_all();
        let is_open = |waiting: &mut Waiting| !waiting.is_flushed;
        drop(self.0.changed.wait_timeout_while(waiting, FLUSH_TIMEOUT, is_open));
    }
}

impl Queue {
    /// Queues one line, which ends with a newline, or counts it as lost. Never blocks for long.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut waiting = self.lock();
        // Once one is lost, all are until the thread takes the others: the gap is in one place.
        if waiting.lost > 0 || waiting.lines.len() + line.len() > CAPACITY {
            waiting.lost += 1;
            LOG_LINES_LOST.get().increment(1);
        } else {
            waiting.lines.extend_from_slice(line);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// Writes lines until the queue is closed and empty.
    fn write_all(&self, out: &mut impl Write) {
        loop {
            let waiting = self.lock();
            let idle = |waiting: &mut Waiting| waiting.is_empty() && !waiting.is_closed;
            let mut waiting = self.changed.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner);
            if waiting.is_empty() {
                waiting.is_flushed = true;
                drop(waiting);
                return self.changed.notify_all();
            }
            let (lines, lost) = (mem::take(&mut waiting.lines), mem::take(&mut waiting.lost));
            drop(waiting);
            if lost > 0 {
                // First in the queue now, and so in the place of the lost lines.
                tracing::warn!(target: TARGET, lines = lost, "log lines are lost here: standard error was not read in time");
            }
            let unwritten = write(out, &lines);
            LOG_LINES_LOST.get().increment(unwritten);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.lost == 0
    }
}

/// For the log: each call is one line.
impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn told(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let mut told = format!("thread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        told += &format!("{backtrace}\n");
    }
    told
}

/// Returns how many lines could not be written.
fn write(out: &mut impl Write, mut lines: &[u8]) -> u64 {
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(written) if written > 0 => lines = &lines[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_PAUSE),
            Ok(_) | Err(_) => break,
        }
    }
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader that is back sees of what waited.
    fn written(queue: &Queue) -> String {
        queue.lock().is_closed = true;
        let mut out = Vec::new();
        queue.write_all(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_that_do_not_fit_are_lost_and_counted_and_the_others_stay_in_order() {
        let queue = Queue::default();
        let long = format!("{}\n", "x".repeat(CAPACITY - 1));
        queue.push(b"first\n");
        for line in [&long, "lost as well\n", &long] {
            queue.push(line.as_bytes());
        }
        assert_eq!(queue.lock().lost, 3);
        assert_eq!(written(&queue), "first\n");
        assert_eq!(queue.lock().lost, 0);
        queue.push(long.as_bytes());
        assert_eq!(written(&queue), long);
        // One that never fits loses no later ones.
        queue.push(format!("x{long}").as_bytes());
        assert_eq!(queue.lock().lost, 1);
        assert_eq!(written(&queue), "");
        queue.push(b"last\n");
        assert_eq!(written(&queue), "last\n");
    }

    /// Standard error after each of `answers`: how many bytes it takes, or why none.
    struct Answers(Vec<Result<usize, io::ErrorKind>>);

    impl Write for Answers {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(self.0.pop().unwrap_or(Ok(bytes.len()))?)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let lost = |answers: &[Result<usize, io::ErrorKind>]| {
            write(&mut Answers(answers.iter().rev().copied().collect()), b"one\ntwo\nthree\n")
        };
        assert_eq!(lost(&[Err(io::ErrorKind::Interrupted), Ok(3), Err(io::ErrorKind::WouldBlock)]), 0);
        assert_eq!(lost(&[Ok(4), Err(io::ErrorKind::StorageFull)]), 2);
        assert_eq!(lost(&[Ok(5), Err(io::ErrorKind::BrokenPipe)]), 2);
        assert_eq!(lost(&[Ok(0)]), 3);
    }

    #[test]
    fn a_panic_is_told_with_its_thread_and_place() {
        let (said, hears) = std::sync::mpsc::channel();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| drop(said.send(told(panic)))));
        let ended =
            thread::Builder::new().name("of this test".to_owned()).spawn(|| panic!("why")).unwrap().join();
        panic::set_hook(usual);
        assert!(ended.is_err());
        let told = hears.iter().find(|told| told.contains("of this test")).unwrap();
        assert!(told.starts_with("thread 'of this test' panicked at src/stderr.rs:"), "{told}");
        assert!(told.contains("\nwhy\n"), "{told}");
    }
}
