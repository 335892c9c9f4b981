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
use std::path::Path;
use std::time::{Duration, Instant};

use closed_loop::{cycles, row};
use ringfence_harness::{Builder, Cluster};

#[path = "support/closed_loop.rs"]
mod closed_loop;

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
    println!("{:<56} {:>10} {:>10} {:>10}", "", "median", "least", "most");

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
            rates.push(load.per_second());
            p50.push(load.quantile_us(0.5) / 1e3);
            p99.push(load.quantile_us(0.99) / 1e3);
        }
        row(&format!("{clients} clients: acquire + release cycles/s"), &mut rates);
        row("  acquire p50, ms", &mut p50);
        row("  acquire p99, ms", &mut p99);
    }
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
