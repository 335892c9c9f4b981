//! Prints the cost of the Redis mirror: the same load on a cluster without it, with it, and with answers that wait for it.
//!
//! ```text
//! cargo build --release && cargo run --release --example mirror
//! ```
//! Two clusters of three nodes, a Redis and the load share this machine. The clusters are measured in turns.

// A measurement that fails panics.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use closed_loop::{cycles, row};
use redis::aio::MultiplexedConnection;
use ringfence_harness::{Client, Cluster, Node, RedisServer, until};
use serde_json::json;

#[path = "support/closed_loop.rs"]
mod closed_loop;

const ROUNDS: usize = 7;
const TIME: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(20);
/// Clients of each cluster during Redis outages.
const CLIENTS: usize = 64;
/// Live leases when Redis is emptied.
const LIVE: usize = 100_000;

fn main() {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ringfence");
    assert!(program.exists(), "{} is missing: run `cargo build --release` first", program.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(&program));
}

async fn measure(program: &std::path::Path) {
    let builder = || Cluster::builder(program);
    let redis = RedisServer::builder().start().await.unwrap();
    let mirrored = builder().argument(format!("--redis={}", redis.url()));
    let without = builder().start().await.unwrap();
    println!("{:<56} {:>10} {:>10} {:>10}", "", "median", "least", "most");

    let with = mirrored.clone().start().await.unwrap();
    published(with.leader().await.unwrap()).await;
    throughput(&without, &with).await;
    outages(&without, &with, &redis).await;
    emptied(&with, &redis).await;
    drop(with);

    redis.restart_empty().await.unwrap();
    let before = mirrored.argument("--mirror-mode=before-answer").start().await.unwrap();
    published(before.leader().await.unwrap()).await;
    latency(&without, &before, &redis).await;
}

async fn throughput(without: &Cluster, with: &Cluster) {
    let (without, with) = (without.leader().await.unwrap().http(), with.leader().await.unwrap().http());
    for clients in [64, 256] {
        let (mut plain, mut mirrored, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let one = cycles(without, clients, TIME).await.per_second();
            let other = cycles(with, clients, TIME).await.per_second();
            plain.push(one);
            mirrored.push(other);
            ratios.push(other / one);
        }
        row(&format!("{clients} clients: cycles/s without a mirror"), &mut plain);
        row("  with the mirror, async", &mut mirrored);
        row("  ratio", &mut ratios);
    }
}

/// The same load while Redis is well, stopped and killed.
async fn outages(without: &Cluster, with: &Cluster, redis: &RedisServer) {
    let leader = with.leader().await.unwrap();
    let without = without.leader().await.unwrap().http();
    let (mut plain, mut rates) = (Vec::new(), [const { Vec::new() }; 3]);
    let mut ratios = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let one = cycles(without, CLIENTS, TIME).await.per_second();
        plain.push(one);
        for (number, (rates, ratios)) in rates.iter_mut().zip(&mut ratios).enumerate() {
            match number {
                0 => published(leader).await,
                1 => redis.stop().await.unwrap(),
                _ => redis.kill().unwrap(),
            }
            if number > 0 {
                becomes(leader, "failing").await;
            }
            let other = cycles(leader.http(), CLIENTS, TIME).await.per_second();
            rates.push(other);
            ratios.push(other / one);
        }
        redis.start().await.unwrap();
        published(leader).await;
    }
    row(&format!("{CLIENTS} clients: cycles/s without a mirror"), &mut plain);
    for (what, (mut rates, mut ratios)) in
        ["well", "stopped", "down"].into_iter().zip(rates.into_iter().zip(ratios))
    {
        row(&format!("  with the mirror, async, while Redis is {what}"), &mut rates);
        row("  ratio", &mut ratios);
    }
}

async fn latency(without: &Cluster, before: &Cluster, redis: &RedisServer) {
    let (without, before) = (without.leader().await.unwrap().http(), before.leader().await.unwrap().http());
    let (mut plain, mut waiting, mut trips, mut added) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let redis = redis::Client::open(redis.url()).unwrap();
    let mut connection = redis.get_multiplexed_async_connection().await.unwrap();
    for _ in 0..ROUNDS {
        let one = cycles(without, 1, TIME).await.quantile_us(0.5);
        let other = cycles(before, 1, TIME).await.quantile_us(0.5);
        let trip = round_trip_us(&mut connection).await;
        plain.push(one);
        waiting.push(other);
        trips.push(trip);
        added.push(other - one - trip);
    }
    row("1 client: acquire p50 without a mirror, µs", &mut plain);
    row("  with before-answer, µs", &mut waiting);
    row("  a round trip to Redis (PING) p50, µs", &mut trips);
    row("  added beyond that round trip, µs", &mut added);
}

async fn emptied(with: &Cluster, redis: &RedisServer) {
    fill(with.leader().await.unwrap().http()).await;
    let mirrored = || async {
        let count: usize = redis.command(["dbsize"]).await.ok()?.parse().ok()?;
        (count >= LIVE).then_some(())
    };
    let mut healed = Vec::new();
    for _ in 0..3 {
        until(SOON * 3, "all leases are in Redis", mirrored).await.unwrap();
        redis.command(["flushall"]).await.unwrap();
        let begun = Instant::now();
        until(SOON * 3, "all leases are in Redis again", mirrored).await.unwrap();
        healed.push(begun.elapsed().as_secs_f64());
    }
    row(&format!("{LIVE} live keys are there after a FLUSHALL, s"), &mut healed);
}

/// Acquires many leases of one key each.
async fn fill(http: SocketAddr) {
    let client = Client::new(http);
    for batch in 0..LIVE / 1_000 {
        let acquire = |number| {
            let key = format!("live/{batch}/{number}");
            json!({"acquire": {"lease_id": uuid::Uuid::new_v4(), "keys": [key], "ttl_ms": 86_400_000}})
        };
        let operations: Vec<_> = (0..1_000).map(acquire).collect();
        let body = json!({ "operations": operations }).to_string();
        assert_eq!(client.raw("POST", "/v1/batch", body).await.unwrap().status, 200);
    }
}

async fn published(leader: &Node) {
    becomes(leader, "published").await;
}

async fn becomes(leader: &Node, state: &str) {
    let look = || async {
        let answer = leader.client().raw("GET", "/v1/cluster", "").await.ok()?;
        let view: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        (view["mirror"]["state"] == state).then_some(())
    };
    until(SOON, format!("the mirror is {state}"), look).await.unwrap();
}

async fn round_trip_us(connection: &mut MultiplexedConnection) -> f64 {
    let mut took = Vec::new();
    for _ in 0..5_000 {
        let begun = Instant::now();
        let _: String = redis::cmd("PING").query_async(connection).await.unwrap();
        took.push(begun.elapsed().as_nanos() as f64 / 1e3);
    }
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}
