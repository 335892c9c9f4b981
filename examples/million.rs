//! Prints what a million live leases cost: memory, snapshots, restarts, catching up, and delays of the runtime.
//!
//! ```text
//! cargo build --release && cargo run --release --example million [LEASES]
//! ```
//! Three nodes and the load share this machine.

// A measurement that fails has nothing better to do than to say where.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_harness::{Answered, Builder, Client, Cluster, Consistency, Node, until};
use serde_json::Value;
use tokio::task::JoinHandle;

/// Operations in one batch.
const BATCH: u64 = 1_000;
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(120);
/// How long a rate is measured.
const RATE: Duration = Duration::from_secs(10);
/// How many clients a rate is measured with.
const CLIENTS: usize = 64;

fn main() {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ringfence");
    assert!(program.exists(), "{} is missing: run `cargo build --release` first", program.display());
    let leases = std::env::args().nth(1).map_or(1_000_000, |number| number.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(Cluster::builder(program), leases));
}

async fn measure(cluster: Builder, leases: u64) {
    let cluster = cluster.start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let behind = cluster.others(leader.id()).next().unwrap();

    behind.kill().unwrap();
    let begun = Instant::now();
    fill(leader.http(), "million", 0..leases, 86_400_000).await;
    println!("{leases} leases granted to batches in {:.1} s", begun.elapsed().as_secs_f64());

    let load = Load::start(leader.http());
    tokio::time::sleep(RATE).await;
    let before = load.stop().await;
    let load = Load::start(leader.http());
    behind.start().unwrap();
    let begun = Instant::now();
    until(SOON, "the follower has caught up", || async { behind.client().is_ready().await.then_some(()) })
        .await
        .unwrap();
    let took = begun.elapsed();
    let meanwhile = load.stop().await;
    println!(
        "a follower without any of them caught up in {:.1} s; meanwhile {meanwhile:.0} cycles/s, before {before:.0}: {:.2}",
        took.as_secs_f64(),
        meanwhile / before
    );

    cluster.kill_all().unwrap();
    let begun = Instant::now();
    cluster.start_all().unwrap();
    cluster.ready().await.unwrap();
    println!("all three killed and restarted: ready in {:.1} s", begun.elapsed().as_secs_f64());
    let leader = cluster.leader().await.unwrap();
    assert_eq!(leader.client().cluster().await.done().live_leases, leases);

    let quiet = delays(leader).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    delayed("nothing happens", &quiet, leader).await;
    for node in cluster.nodes() {
        memory(node, leases);
    }

    let taken = snapshots(leader);
    let before = delays(leader).await;
    let load = Load::start(leader.http());
    let another = || async { (snapshots(leader) > taken).then_some(()) };
    until(10 * SOON, "another snapshot", another).await.unwrap();
    load.stop().await;
    delayed("a snapshot is taken under load", &before, leader).await;
    println!("  {}", leader.log().lines().rfind(|line| line.contains("snapshot taken")).unwrap());

    let before = delays(leader).await;
    let begun = Instant::now();
    let (mut after, mut listed) = (None, 0);
    loop {
        let page = leader.client().keys("million/", after.as_deref(), Consistency::Linearizable).await.done();
        listed += page.keys.len() as u64;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, leases);
    println!("all listed, page by page, in {:.1} s", begun.elapsed().as_secs_f64());
    delayed("they are listed", &before, leader).await;

    let at_once = leases / 10;
    fill(leader.http(), "expiring", 0..at_once, 10_000).await;
    let before = delays(leader).await;
    let gone = || async { (leader.client().cluster().await.done().live_leases == leases).then_some(()) };
    until(SOON, "the leases have expired", gone).await.unwrap();
    delayed(&format!("{at_once} expire at once"), &before, leader).await;
    for node in cluster.nodes() {
        memory(node, leases);
    }
}

/// Acquires one lease for each number, with a key of 32 bytes, in batches.
async fn fill(http: SocketAddr, name: &str, numbers: std::ops::Range<u64>, ttl_ms: u64) {
    let next = Arc::new(AtomicU64::new(numbers.start));
    let width = 31 - name.len();
    let fillers = (0..4).map(|_| {
        let (next, name) = (Arc::clone(&next), name.to_owned());
        tokio::spawn(async move {
            let client = Client::new(http);
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= numbers.end {
                    return;
                }
                let mut body = "{\"operations\":[".to_owned();
                for number in first..(first + BATCH).min(numbers.end) {
                    let comma = if number == first { "" } else { "," };
                    let id = uuid::Uuid::new_v4();
                    write!(
                        body,
                        "{comma}{{\"acquire\":{{\"lease_id\":\"{id}\",\"keys\":[\"{name}/{number:0width$}\"],\"ttl_ms\":{ttl_ms}}}}}"
                    )
                    .unwrap();
                }
                body += "]}";
                let answer = client.raw("POST", "/v1/batch", body).await.unwrap();
                let answer: Value = serde_json::from_slice(&answer.body).unwrap();
                for result in answer["results"].as_array().unwrap() {
                    assert_eq!(result["status"], 201, "{result}");
                }
            }
        })
    });
    for filler in fillers.collect::<Vec<_>>() {
        filler.await.unwrap();
    }
}

/// Clients that acquire and release until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    cycles: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
    begun: Instant,
}

impl Load {
    fn start(http: SocketAddr) -> Self {
        let (stop, cycles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..CLIENTS).map(|number| {
            let (stop, cycles) = (Arc::clone(&stop), Arc::clone(&cycles));
            tokio::spawn(async move {
                let client = Client::new(http);
                let body = format!("{{\"keys\":[\"load/{number}\"]}}");
                while !stop.load(Ordering::Relaxed) {
                    let path = format!("/v1/leases/{}", uuid::Uuid::new_v4());
                    assert_eq!(client.raw("PUT", &path, body.clone()).await.unwrap().status, 201);
                    assert_eq!(client.raw("DELETE", &path, "").await.unwrap().status, 204);
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let clients = clients.collect();
        Self { stop, cycles, clients, begun: Instant::now() }
    }

    /// Stops them, and gives their cycles per second.
    async fn stop(self) -> f64 {
        let rate = self.cycles.load(Ordering::Relaxed) as f64 / self.begun.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
        rate
    }
}

fn memory(node: &Node, leases: u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid().unwrap())).unwrap();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
    };
    println!(
        "node {}: {} B of memory a lease, at most {} so far",
        node.id(),
        bytes("VmRSS:") / leases,
        bytes("VmHWM:") / leases
    );
}

fn snapshots(node: &Node) -> usize {
    node.log().matches("snapshot taken").count()
}

/// How many delays of the runtime were no longer than so many seconds.
async fn delays(node: &Node) -> BTreeMap<String, u64> {
    let text = node.client().metrics().await.done();
    let bucket = |line: &str| {
        let (le, count) =
            line.strip_prefix("ringfence_loop_delay_seconds_bucket{le=\"")?.split_once("\"} ")?;
        Some((le.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(bucket).collect()
}

async fn delayed(what: &str, before: &BTreeMap<String, u64>, node: &Node) {
    let after = delays(node).await;
    let since = |le: &str| after[le] - before[le];
    let (all, over_25, over_50) =
        (since("+Inf"), since("+Inf") - since("0.025"), since("+Inf") - since("0.05"));
    println!(
        "{what}: of {all} delays of the leader's runtime {over_25} were over 25 ms, {over_50} over 50 ms"
    );
}
