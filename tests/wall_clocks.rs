//! The wall clocks of the nodes jump by hours, each in its own way: nothing in a decision reads them.
//!
//! The nodes run with a library that answers for the clock (libfaketime), and reads from a file how far it is off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ringfence_harness::{
    Answered, Client, Cluster, Consistency, Load, Node, Reply, definite, try_once, until,
};
use ringfence_wire::{AcquireRequest, LeaseId, Problem, ProblemKind, Ttl};
use tokio::task::JoinHandle;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);
const HOUR_S: i64 = 3_600;
/// How long leases live that nobody renews.
const TTL: Duration = Duration::from_secs(4);
/// How often clocks jump back and forth.
const STROBE: Duration = Duration::from_millis(100);

/// A cluster whose nodes have clocks of their own.
struct Clocks {
    cluster: Cluster,
    library: PathBuf,
    dir: tempfile::TempDir,
    started: Mutex<Vec<u32>>,
}

impl Clocks {
    /// `None`, said why, where there is no such library.
    async fn start() -> Option<Self> {
        let Some(library) = library() else {
            eprintln!("skipped: needs libfaketime, of the package faketime");
            return None;
        };
        let cluster = Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).lay_out().await.unwrap();
        let clocks = Self { cluster, library, dir: tempfile::tempdir().unwrap(), started: Mutex::default() };
        clocks.throw([0; 3]);
        clocks.cluster.nodes().iter().for_each(|node| clocks.start_node(node));
        clocks.cluster.ready().await.unwrap();
        Some(clocks)
    }

    fn start_node(&self, node: &Node) {
        let change = |command: &mut Command| {
            command.env("LD_PRELOAD", &self.library).env("DONT_FAKE_MONOTONIC", "1");
            command.env("FAKETIME_TIMESTAMP_FILE", self.file(node.id())).env("FAKETIME_NO_CACHE", "1");
        };
        node.start_with(change).unwrap();
        self.started.lock().unwrap().extend(node.pid());
    }

    /// From now on the clocks are off by so many seconds.
    fn throw(&self, offsets_s: [i64; 3]) {
        for (id, offset_s) in (1..).zip(offsets_s) {
            let new = self.dir.path().join("new");
            std::fs::write(&new, format!("{offset_s:+}")).unwrap();
            std::fs::rename(new, self.file(id)).unwrap();
        }
    }

    fn file(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("clock-{id}"))
    }

    /// Kills the leader, waits until the others go on, and starts it again.
    async fn fail_over(&self, load: &Load) {
        let leader = self.cluster.leader().await.unwrap();
        leader.kill().unwrap();
        load.more(50).await.unwrap();
        self.start_node(leader);
        self.cluster.ready().await.unwrap();
    }
}

impl Drop for Clocks {
    /// A process that is killed leaves behind what the library shares between processes.
    fn drop(&mut self) {
        for pid in self.started.lock().unwrap().iter() {
            for name in ["faketime_shm", "sem.faketime_sem"] {
                let _ = std::fs::remove_file(format!("/dev/shm/{name}_{pid}"));
            }
        }
    }
}

fn library() -> Option<PathBuf> {
    let places = std::fs::read_dir("/usr/lib").ok()?.flatten();
    places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

/// By how many seconds the clock was off that stamped this line.
fn offset_s(line: &str) -> Option<i64> {
    let at = Command::new("date").arg("+%s").arg("--date").arg(line.split(' ').next()?).output().unwrap();
    let at: i64 = String::from_utf8(at.stdout).unwrap().trim().parse().ok()?;
    Some(at - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64)
}

/// Has the node log a line, and waits until that shows a clock that is off by about so much.
async fn sees(node: &Node, expected_s: i64) {
    let look = || async {
        let before = node.log().len();
        // A caller that is no peer is worth a line.
        TcpStream::connect(node.peer()).unwrap().write_all(b"no peer's words").unwrap();
        let logged = || async { node.log()[before..].lines().find_map(offset_s) };
        let offset_s = until(SOON, "a line", logged).await.unwrap();
        ((offset_s - expected_s).abs() < HOUR_S / 2).then_some(())
    };
    until(SOON, format!("node {} logs with a clock that is off by {expected_s} s", node.id()), look)
        .await
        .unwrap();
}

/// Takes leases that nobody renews, through all nodes. What it gives fails if one of them ends early or late.
async fn take_leases(cluster: &Cluster) -> Vec<JoinHandle<()>> {
    let clients: Vec<Client> = cluster.nodes().iter().map(Node::client).collect();
    let ttl_ms = Ttl::from_ms(TTL.as_millis() as u32).unwrap();
    let taken = join_all(clients.iter().map(|client| async move {
        let (lease, asked) = (LeaseId::random(), Instant::now());
        let wish = AcquireRequest { ttl_ms, ..try_once(&format!("left/{lease}")) };
        let reply = definite(SOON, || client.acquire(lease, &wish)).await.unwrap();
        assert!(Ok(reply).done().grant().is_some());
        (lease, asked)
    }));
    let ends = |(lease, asked)| tokio::spawn(ends_in_time(clients.clone(), lease, asked));
    taken.await.into_iter().map(ends).collect()
}

/// Watches a lease end: not before its client may count on it, and not long after.
async fn ends_in_time(clients: Vec<Client>, lease: LeaseId, asked: Instant) {
    let mut clients = clients.iter().cycle();
    let gone = || {
        let client = clients.next().unwrap();
        async move {
            let seen = client.lease(lease, Consistency::Linearizable).await;
            let ended = |problem: &Problem| problem.kind == ProblemKind::LeaseGone;
            matches!(seen, Ok(Reply::Refused(problem)) if ended(&problem)).then_some(())
        }
    };
    until(SOON, "a lease that nobody renews ends", gone).await.unwrap();
    assert!(asked.elapsed() >= TTL, "it ended after {:?}, not {TTL:?}", asked.elapsed());
}

#[tokio::test]
async fn no_lease_ends_early_or_late_though_wall_clocks_jump_by_hours() {
    let Some(clocks) = Clocks::start().await else { return };
    let cluster = &clocks.cluster;
    let load = Load::start(cluster, "load");
    // Whoever leads, its clock jumps both ways.
    for turn in 0..3 {
        load.more(50).await.unwrap();
        let before = take_leases(cluster).await;
        let mut offsets_s = [2 * HOUR_S, -2 * HOUR_S, 26 * HOUR_S];
        offsets_s.rotate_left(turn);
        clocks.throw(offsets_s);
        let after = take_leases(cluster).await;
        for (node, offset_s) in cluster.nodes().iter().zip(offsets_s) {
            sees(node, offset_s).await;
        }
        for watched in before.into_iter().chain(after) {
            watched.await.unwrap();
        }
        clocks.fail_over(&load).await;
    }
    load.end().await.check(cluster).await;
}

#[tokio::test]
async fn no_lease_ends_early_or_late_though_wall_clocks_jump_back_and_forth() {
    let Some(clocks) = Clocks::start().await else { return };
    let cluster = &clocks.cluster;
    let load = Load::start(cluster, "load");
    let strobes = async {
        let mut ticks = tokio::time::interval(STROBE);
        for hours in [2, -2].into_iter().cycle() {
            ticks.tick().await;
            clocks.throw([hours * HOUR_S, -hours * HOUR_S, (hours - 24) * HOUR_S]);
        }
    };
    let meanwhile = async {
        load.more(50).await.unwrap();
        let before = take_leases(cluster).await;
        for (node, hours) in cluster.nodes().iter().zip([[2, -2], [2, -2], [-22, -26]]) {
            sees(node, hours[0] * HOUR_S).await;
            sees(node, hours[1] * HOUR_S).await;
        }
        clocks.fail_over(&load).await;
        let after = take_leases(cluster).await;
        for watched in before.into_iter().chain(after) {
            watched.await.unwrap();
        }
    };
    tokio::select! {
        () = strobes => {}
        () = meanwhile => {}
    }
    load.end().await.check(cluster).await;
}
