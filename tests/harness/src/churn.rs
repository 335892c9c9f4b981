use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_wire::{AcquireRequest, LeaseId, Metadata, Token};
use tokio::time::{Instant, sleep};

use crate::{Client, Cluster, Node, granted, released, try_once};

/// Clients that work at once.
const WORKERS: u64 = 8;
/// Approximate log growth of one acquire and release.
const EACH_BYTES: u64 = 4_400;

/// How much [`churn_until`] adds to the log between two looks.
const STEP_BYTES: u64 = 1 << 20;
/// The pause after its first step; it grows, so that snapshots catch up on any machine.
const PAUSE: Duration = Duration::from_millis(100);
/// Bounds it, including what a test does meanwhile.
const CHURNED_WITHIN: Duration = Duration::from_secs(300);

/// The leases that [`churn`] keeps.
#[derive(Clone, Debug, Default)]
pub struct Kept(Vec<(LeaseId, String, Token)>);

/// Makes the log grow by about `bytes`, but the state by little: clients of all running nodes acquire and release leases with
/// large metadata, and keep a small lease for every ten of them.
pub async fn churn(cluster: &Cluster, name: &str, bytes: u64) -> Kept {
    let clients: Vec<Client> = cluster.running().map(Node::client).collect();
    if clients.is_empty() {
        // The power of all is off for a moment.
        return Kept::default();
    }
    let workers = (0..WORKERS).map(|worker| {
        let client = &clients[worker as usize % clients.len()];
        async move {
            let mut kept = Vec::new();
            for number in 0..bytes / EACH_BYTES / WORKERS {
                let (lease, name) = (LeaseId::random(), format!("{name}/{worker}/{number}"));
                granted(client, lease, &large(&name)).await;
                released(client, lease).await;
                if number % 10 == 0 {
                    let lease = LeaseId::random();
                    let token = granted(client, lease, &try_once(&name)).await.token;
                    kept.push((lease, name, token));
                }
            }
            kept
        }
    });
    Kept(join_all(workers).await.into_iter().flatten().collect())
}

/// Churns in small steps until `is_enough`: how much log is written while a snapshot is taken depends on the machine.
///
/// # Panics
/// Where that takes too long.
pub async fn churn_until(cluster: &Cluster, name: &str, is_enough: impl Fn() -> bool) -> Kept {
    let (mut kept, began) = (Kept::default(), Instant::now());
    for step in 1.. {
        if is_enough() {
            break;
        }
        assert!(began.elapsed() < CHURNED_WITHIN, "{name}: not enough after {step} steps");
        kept.add(churn(cluster, &format!("{name}/{step}"), STEP_BYTES).await);
        sleep(step * PAUSE).await;
    }
    kept
}

/// Churns until every running node has truncated the entries that come next: a node that lacks them needs a snapshot.
pub async fn churn_past(cluster: &Cluster, name: &str) -> Kept {
    let mut kept = churn(cluster, name, STEP_BYTES).await;
    let newest: Vec<_> = cluster.running().map(|node| (node, node.segments().pop())).collect();
    let is_past = || newest.iter().all(|(node, newest)| node.segments().first() > newest.as_ref());
    kept.add(churn_until(cluster, &format!("{name}/past"), is_past).await);
    kept
}

impl Kept {
    /// Adds those of `other`.
    pub fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Checks through `node` that all of them are still granted with the same tokens, and that the next token is larger.
    ///
    /// # Panics
    /// If that is not so.
    pub async fn check(&self, node: &Node) {
        let client = node.client();
        for (lease, name, token) in &self.0 {
            assert_eq!(granted(&client, *lease, &try_once(name)).await.token, *token, "{name}");
        }
        let new = try_once(&format!("next/{}", LeaseId::random()));
        let next = granted(&client, LeaseId::random(), &new).await.token;
        assert!(self.0.iter().all(|(.., token)| *token < next));
    }
}

/// A request with as much metadata as a lease may have.
fn large(name: &str) -> AcquireRequest {
    let filler = BTreeMap::from([("filler".to_owned(), noise(4_000))]);
    AcquireRequest { metadata: Metadata::new(filler).unwrap_or_default(), ..try_once(name) }
}

/// This many bytes of text that get no smaller in a compressed log.
pub fn noise(bytes: usize) -> String {
    let ids = iter::repeat_with(|| LeaseId::random().to_string());
    let mut noise: String = ids.take(bytes / 36 + 1).collect();
    noise.truncate(bytes);
    noise
}
