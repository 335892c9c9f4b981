//! The Rust client against a real cluster.

mod acquiring;
mod distrust;
mod faults;
mod holding;
mod lossy_proxy;
mod operating;
mod watching;

use std::time::Duration;

use ringfence_client::{Client, Consistency, KeyView};
use ringfence_harness::{Answered, Cluster, until};

use crate::support::{PROGRAM, SOON};

/// A time-to-live longer than any test.
const LONG: Duration = Duration::from_secs(86_400);

async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let client = client_of(&cluster);
    (cluster, client)
}

fn client_of(cluster: &Cluster) -> Client {
    Client::connect(cluster.nodes().iter().map(|node| node.url())).unwrap()
}

/// Waits until the view of a key is as expected.
async fn seen(client: &Client, key: &str, what: &str, looks: impl Fn(&KeyView) -> bool) -> KeyView {
    let look = async || client.key(key, Consistency::Linearizable).await.ok().filter(&looks);
    until(SOON, what, look).await.unwrap()
}

async fn is_free(client: &Client, key: &str) {
    seen(client, key, "the key is free", |view| view.holders.is_empty() && view.waiters.is_empty()).await;
}

/// The sum of a metric over all running nodes, with these labels.
async fn measured(cluster: &Cluster, name: &str, labels: &[&str]) -> u64 {
    let mut sum = 0.0;
    for node in cluster.running() {
        let text = node.client().metrics().await.done();
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            (rest.starts_with('{') || rest.starts_with(' '))
                && labels.iter().all(|label| rest.contains(label))
        });
        sum += lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>();
    }
    sum as u64
}
