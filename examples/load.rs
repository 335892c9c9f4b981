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
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_harness::{Builder, Cluster};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ROUNDS: usize = 5;

fn main() {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ringfence");
    assert!(program.exists(), "{} is missing: run `cargo build --release` first", program.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(Cluster::builder(program)));
}

async fn measure(cluster: Builder) {
    let cluster = cluster.start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    println!("{:<48} {:>10} {:>10} {:>10}", "", "median", "least", "most");

    let (mut floors, mut singles, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let floor = floor(&leader.data(), Duration::from_secs(2));
        let single = cycles(leader.http(), 1, Duration::from_secs(2)).await.quantile_us(0.5);
        floors.push(floor);
        singles.push(single);
        ratios.push(single / floor);
    }
    row("three writers append 200 B + fdatasync: p50, µs", &mut floors);
    row("1 client: acquire p50, µs", &mut singles);
    row("  ratio", &mut ratios);

    for clients in [64, 256, 1024] {
        let (mut rates, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let load = cycles(leader.http(), clients, Duration::from_secs(4)).await;
            rates.push(load.acquires_us.len() as f64 / load.took.as_secs_f64());
            p50.push(load.quantile_us(0.5) / 1e3);
            p99.push(load.quantile_us(0.99) / 1e3);
        }
        row(&format!("{clients} clients: acquire + release cycles/s"), &mut rates);
        row("  acquire p50, ms", &mut p50);
        row("  acquire p99, ms", &mut p99);
    }
}

fn row(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let digits = if values[values.len() / 2] < 100.0 { 2 } else { 0 };
    println!(
        "{name:<48} {:>10.digits$} {:>10.digits$} {:>10.digits$}",
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
                let mut took = Vec::new();
                let begun = Instant::now();
                while begun.elapsed() < time && took.len() < 20_000 {
                    let start = Instant::now();
                    file.write_all(&[7; 200]).unwrap();
                    file.sync_data().unwrap();
                    took.push(start.elapsed().as_nanos() as f64 / 1e3);
                }
                std::fs::remove_file(&path).unwrap();
                took
            })
        })
        .collect();
    let mut took: Vec<f64> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

struct Load {
    took: Duration,
    /// Sorted; one per cycle.
    acquires_us: Vec<f64>,
}

impl Load {
    fn quantile_us(&self, quantile: f64) -> f64 {
        self.acquires_us[((self.acquires_us.len() - 1) as f64 * quantile) as usize]
    }
}

/// A closed loop of `clients`, each acquiring and releasing a key of its own.
async fn cycles(http: SocketAddr, clients: usize, time: Duration) -> Load {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = Connection::open(http).await.unwrap();
                let body = format!(r#"{{"keys":["load/{client}"]}}"#);
                let mut took = Vec::new();
                while begun.elapsed() < time {
                    let id = uuid::Uuid::new_v4();
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
    Load { took: begun.elapsed(), acquires_us }
}

/// One HTTP/1.1 connection, as thin as can be: the load generator shares the cores with what it measures.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(http: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(http).await?;
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
