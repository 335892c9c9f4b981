//! Prints the figures of a three-node cluster on this machine, side by side with what the disk alone can do.
//!
//! ```text
//! cargo build --release && cargo run --release --example load
//! ```
//! Everything runs on the same cores: three nodes, the load generator, and the disk's own measurement in turns. Medians
//! of several rounds.

// A measurement that fails has nothing better to do than to say where.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ROUNDS: usize = 3;

fn main() {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ringfence");
    assert!(program.exists(), "{} is missing: run `cargo build --release` first", program.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let data = tempfile::Builder::new().prefix("ringfence-load-").tempdir().unwrap();

    let mut cluster = Cluster::start(&program, data.path());
    let leader = runtime.block_on(cluster.leader());
    println!("{:<44} {:>10} {:>10} {:>10}", "", "median", "least", "most");

    let mut floors = Vec::new();
    let mut singles = Vec::new();
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        floors.push(floor(data.path(), Duration::from_secs(2)));
        let single = runtime.block_on(cycles(cluster.http(leader), 1, Duration::from_secs(2)));
        singles.push(single.p50_us());
        ratios.push(singles[singles.len() - 1] / floors[floors.len() - 1]);
    }
    row("three writers, 200 B + fdatasync: p50, µs", &mut floors);
    row("1 client: acquire p50, µs", &mut singles);
    row("  ratio", &mut ratios);

    for clients in [64, 256, 1024] {
        let mut rates = Vec::new();
        let mut p50 = Vec::new();
        let mut p99 = Vec::new();
        for _ in 0..ROUNDS {
            let load = runtime.block_on(cycles(cluster.http(leader), clients, Duration::from_secs(4)));
            rates.push(load.cycles as f64 / load.took.as_secs_f64());
            p50.push(load.p50_us() / 1e3);
            p99.push(load.quantile_us(0.99) / 1e3);
        }
        row(&format!("{clients} clients: acquire + release cycles/s"), &mut rates);
        row("  acquire p50, ms", &mut p50);
        row("  acquire p99, ms", &mut p99);
    }

    let mut gaps = Vec::new();
    for _ in 0..ROUNDS {
        gaps.push(runtime.block_on(cluster.failover()).as_secs_f64());
    }
    row("kill -9 of the leader until the next grant, s", &mut gaps);
}

fn row(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let digits = if values[values.len() / 2] < 100.0 { 2 } else { 0 };
    println!(
        "{name:<44} {:>10.digits$} {:>10.digits$} {:>10.digits$}",
        values[values.len() / 2],
        values[0],
        values[values.len() - 1]
    );
}

/// What the disk alone needs: the p50, in µs, of three concurrent writers that each append 200 B and sync.
fn floor(dir: &Path, time: Duration) -> f64 {
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let path = dir.join(format!("floor-{writer}"));
            std::thread::spawn(move || {
                let mut file = File::create(&path).unwrap();
                // Zeroed ahead, as the log is: syncs then need not write the file's length.
                file.write_all(&vec![0; 4 << 20]).unwrap();
                file.sync_all().unwrap();
                let mut file = File::options().write(true).open(&path).unwrap();
                let mut took = Vec::new();
                let begun = Instant::now();
                while begun.elapsed() < time && took.len() < 20_000 {
                    let start = Instant::now();
                    file.write_all(&[7; 200]).unwrap();
                    file.sync_data().unwrap();
                    took.push(start.elapsed().as_nanos() as f64 / 1e3);
                }
                took
            })
        })
        .collect();
    let mut took: Vec<f64> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

struct Load {
    cycles: u64,
    took: Duration,
    acquires_us: Vec<f64>,
}

impl Load {
    fn p50_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.acquires_us[((self.acquires_us.len() - 1) as f64 * quantile) as usize]
    }
}

/// A closed loop of `clients`, each acquiring and releasing a key of its own.
async fn cycles(http: u16, clients: usize, time: Duration) -> Load {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = Connection::open(http).await.unwrap();
                let body = format!(r#"{{"keys":["load/{client}"]}}"#);
                let mut took = Vec::new();
                for cycle in 0u64.. {
                    if begun.elapsed() > time {
                        break;
                    }
                    let id = uuid::Uuid::from_u64_pair(
                        client as u64 + 1 + (u64::from(std::process::id()) << 32),
                        begun_id(begun) ^ cycle,
                    );
                    let start = Instant::now();
                    assert_eq!(
                        connection.call("PUT", &format!("/v1/leases/{id}"), &body).await.unwrap(),
                        201
                    );
                    took.push(start.elapsed().as_nanos() as f64 / 1e3);
                    assert_eq!(
                        connection.call("DELETE", &format!("/v1/leases/{id}"), "").await.unwrap(),
                        204
                    );
                }
                took
            })
        })
        .collect();
    let mut acquires_us = Vec::new();
    for task in tasks {
        acquires_us.extend(task.await.unwrap());
    }
    acquires_us.sort_by(f64::total_cmp);
    Load { cycles: acquires_us.len() as u64, took: begun.elapsed(), acquires_us }
}

fn begun_id(begun: Instant) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(begun)
}

/// One HTTP/1.1 connection, as thin as can be: the load generator shares the cores with what it measures.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(http: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", http)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(1024) })
    }

    /// The status of the answer.
    async fn call(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<u16> {
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: l\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let Some(head) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).unwrap();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse::<usize>().unwrap());
            if self.buffer.len() >= head + 4 + length {
                return Ok(text[9..12].parse().unwrap());
            }
        }
    }
}

struct Cluster {
    program: PathBuf,
    data: PathBuf,
    ports: Vec<(u16, u16)>,
    nodes: Vec<Child>,
}

impl Cluster {
    fn start(program: &Path, data: &Path) -> Self {
        let held: Vec<_> = (0..6).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(held);
        let ports = ports.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let mut cluster =
            Self { program: program.to_owned(), data: data.to_owned(), ports, nodes: Vec::new() };
        cluster.nodes = (0..3).map(|node| cluster.spawn(node)).collect();
        cluster
    }

    fn spawn(&self, node: usize) -> Child {
        let peers: Vec<String> =
            self.ports.iter().zip(1..).map(|((_, peer), id)| format!("{id}=127.0.0.1:{peer}")).collect();
        let (http, peer) = self.ports[node];
        Command::new(&self.program)
            .args([
                "serve",
                "--die-with-parent",
                "--log",
                "error",
                "--first-revision",
                "1",
                "--config",
                "/dev/null",
            ])
            .args(["--id", &(node + 1).to_string(), "--peers", &peers.join(",")])
            .args(["--http", &format!("127.0.0.1:{http}"), "--peer", &format!("127.0.0.1:{peer}")])
            .arg("--data")
            .arg(self.data.join(format!("node-{}", node + 1)))
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn http(&self, node: usize) -> u16 {
        self.ports[node].0
    }

    /// Who leads, once a node knows.
    async fn leader(&self) -> usize {
        loop {
            for node in 0..self.nodes.len() {
                if self.leads(node).await.unwrap_or(false) {
                    return node;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn leads(&self, node: usize) -> std::io::Result<bool> {
        let mut connection = Connection::open(self.http(node)).await?;
        connection.call("GET", "/v1/cluster", "").await?;
        Ok(connection.buffer.windows(15).any(|part| part == br#""role":"leader""#))
    }

    /// Kills the leader, and gives the time until a new lease is granted through another node.
    async fn failover(&mut self) -> Duration {
        let leader = self.leader().await;
        self.nodes[leader].kill().unwrap();
        let killed = Instant::now();
        self.nodes[leader].wait().unwrap();
        let mut connection = Connection::open(self.http((leader + 1) % 3)).await.unwrap();
        loop {
            let path = format!("/v1/leases/{}", uuid::Uuid::new_v4());
            let body = format!(r#"{{"keys":["failover/{}"]}}"#, uuid::Uuid::new_v4());
            if connection.call("PUT", &path, &body).await.unwrap() == 201 {
                break;
            }
        }
        let gap = killed.elapsed();
        self.nodes[leader] = self.spawn(leader);
        while self.leads(leader).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        gap
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
