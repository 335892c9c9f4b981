//! Prints how long grants pause when the leader is lost.
//!
//! ```text
//! cargo build --release && cargo run --release --example failover
//! ```
//! Three nodes on this machine, each in a network of its own where that is allowed (root); otherwise none is cut off.

// A measurement that fails has nothing better to do than to say where.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use ringfence_harness::{Builder, Client, Cluster, Network, Node, granted, try_once};
use ringfence_wire::LeaseId;

const ROUNDS: usize = 20;

fn main() {
    let program = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("ringfence");
    assert!(program.exists(), "{} is missing: run `cargo build --release` first", program.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(Cluster::builder(program)));
}

async fn measure(builder: Builder) {
    println!("{:<56} {:>8} {:>8} {:>8}", format!("{ROUNDS} times"), "median", "least", "most");
    let network = Network::new(3).ok();
    let cluster = match &network {
        Some(network) => builder.network(network),
        None => builder,
    };
    let cluster = cluster.start().await.unwrap();

    row("leader killed: s until the next grant", async || {
        let (leader, other) = roles(&cluster).await;
        leader.kill().unwrap();
        let pause = next_grant(&other.client()).await;
        leader.start().unwrap();
        pause
    })
    .await;
    row("leader stopped (SIGSTOP): s until the next grant", async || {
        let (leader, other) = roles(&cluster).await;
        leader.stop().unwrap();
        let pause = next_grant(&other.client()).await;
        leader.resume().unwrap();
        pause
    })
    .await;
    if let Some(network) = &network {
        row("leader cut off: s until the next grant", async || {
            let (leader, other) = roles(&cluster).await;
            network.isolate(leader.id()).unwrap();
            let pause = next_grant(&other.client()).await;
            network.heal().unwrap();
            pause
        })
        .await;
    }
    row("leader asked to stop (SIGTERM): s until the next grant", async || {
        let (leader, other) = roles(&cluster).await;
        let begun = Instant::now();
        let client = other.client();
        // Grants go on until it hands over.
        let (mut longest, mut last) = (Duration::ZERO, begun);
        let ended = leader.terminate();
        tokio::pin!(ended);
        loop {
            tokio::select! {
                ended = &mut ended => { assert!(ended.unwrap().success()); break }
                _ = next_grant(&client) => {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
        }
        leader.start().unwrap();
        longest.as_secs_f64()
    })
    .await;
}

async fn row(name: &str, mut once: impl AsyncFnMut() -> f64) {
    let mut values = Vec::new();
    for _ in 0..ROUNDS {
        values.push(once().await);
    }
    values.sort_by(f64::total_cmp);
    println!("{name:<56} {:>8.2} {:>8.2} {:>8.2}", values[ROUNDS / 2], values[0], values[ROUNDS - 1]);
}

/// Waits until the cluster is ready; returns the leader and another node.
async fn roles(cluster: &Cluster) -> (&Node, &Node) {
    cluster.ready().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    (leader, cluster.others(leader.id()).next().unwrap())
}

/// The seconds until a new lease is granted.
async fn next_grant(client: &Client) -> f64 {
    let begun = Instant::now();
    granted(client, LeaseId::random(), &try_once(&format!("failover/{}", LeaseId::random()))).await;
    begun.elapsed().as_secs_f64()
}
