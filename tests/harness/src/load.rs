//! Clients that work all the time, through all nodes, and remember what they were answered.
//!
//! - A *worker* acquires one key of its own after the other, through one node. It releases the lease, or renews it for
//!   another time-to-live, or leaves it as it is.
//! - A *keeper* holds one lease for a short time-to-live, and asks for its renewal all the time, through one node after
//!   the other.
//!
//! What must be true of a cluster afterwards, whatever happened to it meanwhile, [`Known::check`] checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringfence_wire::{AcquireRequest, LeaseId, MAX_TTL_MS, Token, Ttl};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::known::Grant;
use crate::{
    Acquired, Called, Client, Cluster, Error, Failure, Fate, Known, Reply, definite, try_once, until,
};

/// Keepers of a load.
const KEEPERS: u32 = 8;
/// How long a worker waits for an answer: longer than a node does that runs.
const ANSWER: Duration = Duration::from_secs(8);
/// How long the leases of keepers live, how often they are renewed, and how long a keeper waits for an answer before it
/// asks another node.
const KEPT_TTL_MS: u32 = 3_000;
const RENEWAL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_millis(500);
/// A node that is down refuses at once: there is no use in asking it a thousand times.
const AGAIN: Duration = Duration::from_millis(50);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// Clients at work, until they are told to stop.
#[derive(Debug)]
pub struct Load {
    enough: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Known>>,
}

impl Load {
    /// How many workers there are, each with one lease asked for at a time.
    pub const WORKERS: u64 = 24;

    /// Starts clients of all nodes of `cluster`, on keys that begin with `name`.
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let (enough, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let nodes: Vec<Client> = cluster.nodes().iter().map(|node| node.client()).collect();
        let workers = (0..Self::WORKERS).zip(nodes.iter().cycle()).map(|(number, node)| {
            let worker = Worker {
                node: node.within(ANSWER),
                name: format!("{name}/{number}"),
                grants: Arc::clone(&grants),
                known: Known::of(name),
            };
            tokio::spawn(worker.run(Arc::clone(&enough)))
        });
        let keepers = (0..KEEPERS).map(|number| {
            let keeper = Keeper {
                nodes: nodes.iter().map(|node| node.within(PATIENCE)).collect(),
                name: format!("{name}/kept/{number}"),
                known: Known::of(name),
            };
            // They do not ask all at once: else a few log entries would do for the renewals of a long time.
            tokio::spawn(keeper.run(RENEWAL * number / KEEPERS, Arc::clone(&enough)))
        });
        let clients = workers.chain(keepers).collect();
        Self { enough, grants, clients }
    }

    /// Waits until the workers were granted so many leases more.
    pub async fn more(&self, grants: u64) -> Result<(), Error> {
        let last = self.grants.load(Ordering::Relaxed) + grants;
        let look = || std::future::ready((self.grants.load(Ordering::Relaxed) >= last).then_some(()));
        until(SOON, format!("{grants} leases more are granted"), look).await
    }

    /// Tells the clients to stop, and gives what they know.
    ///
    /// # Panics
    /// If a client was answered what it may not be answered.
    pub async fn end(self) -> Known {
        self.enough.store(true, Ordering::Relaxed);
        let mut all = Known::default();
        for client in self.clients {
            all.add(client.await.expect("a client that cannot go on has failed the test"));
        }
        all
    }
}

struct Worker {
    node: Client,
    name: String,
    grants: Arc<AtomicU64>,
    known: Known,
}

impl Worker {
    async fn run(mut self, enough: Arc<AtomicBool>) -> Known {
        for number in 0.. {
            if enough.load(Ordering::Relaxed) {
                break;
            }
            self.work(number).await;
        }
        self.known
    }

    /// What is not known is not counted, whichever way it went.
    async fn work(&mut self, number: u32) {
        let (lease, key) = (LeaseId::random(), format!("{}/{number}", self.name));
        let wish = try_once(&key);
        let asked = Instant::now();
        let grant = match self.node.acquire(lease, &wish).await {
            Ok(Reply::Done { body: Acquired::Granted(grant), .. }) => grant,
            Ok(other) => panic!("{key}, which nobody else wants: {other:?}"),
            Err(failure) => {
                check(&failure);
                return sleep(AGAIN).await;
            }
        };
        self.grants.fetch_add(1, Ordering::Relaxed);
        self.known.grants.push(Grant { asked, answered: Instant::now(), token: grant.token });
        match number % 3 {
            0 => self.known.hold(lease, key, grant.token, Some(grant.ttl_ms)),
            1 => {
                if is_done(self.node.release(lease).await) {
                    self.known.released.push(key);
                }
            }
            _ => {
                let ttl_ms = MAX_TTL_MS - 1 - number % 1_000;
                let is_done = is_done(self.node.renew(lease, Ttl::from_ms(ttl_ms)).await);
                self.known.hold(lease, key, grant.token, is_done.then_some(ttl_ms));
            }
        }
    }
}

/// Whether a call has succeeded; it may not know. It may not be refused.
fn is_done<T>(called: Called<T>) -> bool {
    match called {
        Ok(Reply::Done { .. }) => true,
        Ok(Reply::Refused(problem)) => panic!("of a lease that is held: {problem:?}"),
        Err(failure) => {
            check(&failure);
            false
        }
    }
}

/// A call may come to nothing that is known, but not to an answer against the contract.
fn check(failure: &Failure) {
    assert_ne!(failure.fate, Fate::Malformed, "{failure}");
}

struct Keeper {
    nodes: Vec<Client>,
    name: String,
    known: Known,
}

impl Keeper {
    async fn run(mut self, late: Duration, enough: Arc<AtomicBool>) -> Known {
        sleep(late).await;
        let lease = LeaseId::random();
        let mut nodes = self.nodes.iter().cycle();
        let mut next = || nodes.next().expect("a cluster has nodes").clone();
        let wish =
            AcquireRequest { ttl_ms: Ttl::from_ms(KEPT_TTL_MS).unwrap_or_default(), ..try_once(&self.name) };
        let acquire = || {
            let (node, wish) = (next(), wish.clone());
            async move { node.acquire(lease, &wish).await }
        };
        let token: Token = match definite(SOON, acquire).await {
            Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) => grant.token,
            other => panic!("{}, which nobody else wants: {other:?}", self.name),
        };
        let mut renewed = Instant::now();
        while !enough.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match next().renew(lease, None).await {
                Ok(Reply::Done { body: grant, .. }) => {
                    assert_eq!(grant.token, token, "of {}", self.name);
                    renewed = asked;
                    self.known.renewals += 1;
                }
                Ok(Reply::Refused(problem)) => {
                    let after = renewed.elapsed();
                    self.known
                        .lost
                        .push(format!("{}: {problem:?}, {after:?} after its last renewal", self.name));
                    break;
                }
                Err(failure) => check(&failure),
            }
            sleep(RENEWAL).await;
        }
        self.known
    }
}
