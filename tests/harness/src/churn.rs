use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_wire::{AcquireRequest, LeaseId, Metadata, Token};

use crate::{Answered, Client, Cluster, Node, definite, granted, try_once};

/// Bounds what should take far less: nodes may be down meanwhile.
const SOON: Duration = Duration::from_secs(60);
/// Clients that work at once.
const WORKERS: u64 = 8;
/// Approximate log growth of one acquire and release.
const EACH_BYTES: u64 = 4_400;

/// The leases that a [`churn`] has kept.
#[derive(Clone, Debug, Default)]
pub struct Kept(Vec<(LeaseId, String, Token)>);

/// Makes the log grow by about `bytes`, but the state by little: clients of all running nodes acquire and release leases
/// with much metadata, and keep a small one for every ten of them.
pub async fn churn(cluster: &Cluster, name: &str, bytes: u64) -> Kept {
    let clients: Vec<Client> = cluster.running().map(Node::client).collect();
    let workers = (0..WORKERS).map(|worker| {
        let client = &clients[worker as usize % clients.len()];
        async move {
            let mut kept = Vec::new();
            for number in 0..bytes / EACH_BYTES / WORKERS {
                let (lease, name) = (LeaseId::random(), format!("{name}/{worker}/{number}"));
                granted(client, lease, &large(&name)).await;
                let released = definite(SOON, || client.release(lease)).await;
                Ok(released.unwrap_or_else(|error| panic!("{error}"))).done();
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
    let filler = BTreeMap::from([("filler".to_owned(), "x".repeat(4_000))]);
    AcquireRequest { metadata: Metadata::new(filler).unwrap_or_default(), ..try_once(name) }
}
