//! A log that nobody reads: standard error is a pipe whose reader is alive, and hangs.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringfence_harness::{Cluster, Node, granted, try_once, until};
use ringfence_wire::LeaseId;
use rustix::fs::OFlags;
use tempfile::TempDir;

use crate::support::{PROGRAM, SOON, script};

const LOST: &str = "ringfence_log_lines_lost_total";

/// The reader of a node's standard error, which hangs until it [reads](Self::read).
struct Reader {
    end: File,
    dir: TempDir,
}

/// A reader that is back.
struct Reading {
    said: Arc<Mutex<String>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Has `node` log to this reader from its next start on.
    fn of(node: &Node) -> Self {
        let dir = TempDir::new().unwrap();
        let pipe = dir.path().join("stderr");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let end = open(&pipe, File::options().read(true));
        let line = format!("exec '{PROGRAM}' \"$@\" 2>'{}'", pipe.display());
        node.use_program(script(dir.path(), &line));
        Self { end, dir }
    }

    /// Leaves no room in the pipe.
    fn fill(&self) {
        let mut writer = open(&self.dir.path().join("stderr"), File::options().write(true));
        for size in [4096, 1] {
            while writer.write(&vec![b'\n'; size]).is_ok() {}
        }
    }

    /// Reads from now on.
    fn read(&self) -> Reading {
        let (said, ends) = (Arc::<Mutex<String>>::default(), Arc::<AtomicBool>::default());
        let (mut end, hears, stop) = (self.end.try_clone().unwrap(), Arc::clone(&said), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            loop {
                let ends = stop.load(Ordering::Relaxed);
                match end.read(&mut bytes) {
                    Ok(read) if read > 0 => {
                        hears.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
                    }
                    Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                    _ if ends => return,
                    _ => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Reading { said, ends, thread: Some(thread) }
    }
}

impl Reading {
    /// The lost lines that the log tells of.
    fn untold(&self) -> Option<f64> {
        let said = self.said.lock().unwrap();
        let gaps = said
            .lines()
            .filter_map(|line| line.split_once("log lines are lost here")?.1.split_once("lines="));
        gaps.map(|(_, count)| count.trim().parse::<f64>().ok()).sum()
    }

    /// All that was read, and what was left in the pipe.
    fn end(mut self) -> String {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.said.lock().unwrap().clone()
    }
}

fn open(pipe: &Path, how: &mut fs::OpenOptions) -> File {
    how.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(pipe).unwrap()
}

/// Waits until the node has lost lines.
async fn overflows(node: &Node) {
    let lost = || async { (node.metric(LOST).await.ok()?? > 0.0).then_some(()) };
    until(SOON, format!("node {} loses lines", node.id()), lost).await.unwrap();
}

#[tokio::test]
async fn a_node_whose_log_nobody_reads_serves_and_tells_later_how_many_lines_are_lost() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).argument("--log=trace").lay_out().await.unwrap();
    let node = cluster.node(1);
    let reader = Reader::of(node);
    cluster.all_ready().await.unwrap();
    assert!(node.metric(LOST).await.unwrap().is_some());
    overflows(node).await;
    granted(&node.client(), LeaseId::random(), &try_once("unread")).await;
    node.ready().await.unwrap();

    let reading = reader.read();
    let told = async || {
        let lost = node.metric(LOST).await.ok()??;
        (reading.untold() == Some(lost)).then_some(())
    };
    until(SOON, "the log tells of all lost lines", told).await.unwrap();
    let status = node.terminate().await.unwrap();
    assert!(status.success(), "{status}");
    let said = reading.end();
    assert!(said.contains("node started") && said.contains("stopping"));
}

#[tokio::test]
#[ignore = "slow"]
async fn a_cluster_whose_logs_nobody_reads_serves_and_stops() {
    let cluster = Cluster::builder(PROGRAM).argument("--log=trace").lay_out().await.unwrap();
    let _readers: Vec<Reader> = cluster.nodes().iter().map(Reader::of).collect();
    cluster.all_ready().await.unwrap();
    for node in cluster.nodes() {
        overflows(node).await;
    }
    for node in cluster.nodes() {
        granted(&node.client().patient(), LeaseId::random(), &try_once(&format!("unread/{}", node.id())))
            .await;
        node.ready().await.unwrap();
    }
    for node in cluster.nodes() {
        let status = node.terminate().await.unwrap();
        assert!(status.success(), "{status}");
    }
}

#[tokio::test]
async fn an_error_that_nobody_reads_keeps_no_node_from_its_end() {
    let cluster = Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    let reader = Reader::of(node);
    reader.fill();
    node.start_with(|command| _ = command.arg("--http-threads=0")).unwrap();
    assert_eq!(node.ends().await.unwrap().code(), Some(2));
    // In the usual case, it is read.
    let reading = reader.read();
    node.start_with(|command| _ = command.arg("--http-threads=0")).unwrap();
    assert_eq!(node.ends().await.unwrap().code(), Some(2));
    let said = reading.end();
    assert!(
        said.ends_with("--http-threads must be from 1 to 64 (as variables: RINGFENCE_HTTP_THREADS)\n"),
        "{said}"
    );
}
