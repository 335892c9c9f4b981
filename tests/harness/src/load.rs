//! Clients that work continuously through all nodes, and record their answers.
//!
//! - A *worker* acquires keys of its own one after the other, through one node, and then releases the lease, renews it with
//!   another TTL, or leaves it.
//! - A *keeper* holds a lease with a short TTL by renewing it continuously, through one node after the other.
//!
//! Whatever happens to the cluster, [`Record::check`] must succeed afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_wire::{AcquireRequest, Grant, LeaseId, MAX_TTL_MS, Token, Ttl};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::record::Held;
use crate::{
    Acquired, Called, Client, Cluster, Error, Failure, Fate, Granted, Record, Reply, definite, try_once,
    until,
};

const KEEPERS: u32 = 8;
/// The timeout of a worker: longer than a running node takes.
const ANSWER: Duration = Duration::from_secs(8);
/// The TTL of a keeper's lease, the pause between its renewals, and its timeout before it tries another node.
const KEPT_TTL_MS: u32 = 3_000;
const RENEWAL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_millis(500);
/// A keeper that was delayed by this much between two renewals may lose its lease: the machine stalled.
const HELD_UP: Duration = Duration::from_millis(KEPT_TTL_MS as u64 / 2);
/// The pause after a failure: a node that is down refuses at once.
const AGAIN: Duration = Duration::from_millis(50);
/// The pause of a gentle worker after each lease.
const GENTLY: Duration = Duration::from_millis(20);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// Clients at work until they are stopped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Record>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    grants: Mutex<Vec<Granted>>,
}

impl Load {
    /// The number of workers, each of which asks for one lease at a time.
    pub const WORKERS: u64 = 24;

    /// Starts clients of all nodes of `cluster`, on keys that begin with `name`.
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let nodes: Vec<Client> = cluster.nodes().iter().map(|node| node.client()).collect();
        Self::of(cluster, name, Self::WORKERS, Duration::ZERO, vec![nodes; KEEPERS as usize])
    }

    /// Starts one worker for each node, with pauses, and one keeper that uses the nodes `keep`, if any.
    pub fn gentle(cluster: &Cluster, name: &str, keep: &[u64]) -> Self {
        let nodes: Vec<Client> = keep.iter().map(|id| cluster.node(*id).client()).collect();
        let keepers = if nodes.is_empty() { Vec::new() } else { vec![nodes] };
        Self::of(cluster, name, cluster.nodes().len() as u64, GENTLY, keepers)
    }

    fn of(cluster: &Cluster, name: &str, workers: u64, pause: Duration, keepers: Vec<Vec<Client>>) -> Self {
        let shared = Arc::<Shared>::default();
        let record = || Record { names: [format!("{name}/")].into(), ..Record::default() };
        let workers = (0..workers).zip(cluster.nodes().iter().cycle()).map(|(number, node)| {
            let worker = Worker {
                node: node.id(),
                client: node.client().within(ANSWER),
                name: format!("{name}/{number}"),
                pause,
                record: record(),
                shared: Arc::clone(&shared),
            };
            tokio::spawn(worker.run())
        });
        let keepers = (0..).zip(keepers).map(|(number, nodes)| {
            let keeper = Keeper {
                nodes: nodes.iter().map(|node| node.within(PATIENCE)).collect(),
                name: format!("{name}/kept/{number}"),
                record: Record { keepers: 1, ..record() },
                shared: Arc::clone(&shared),
            };
            // Spread over time: otherwise a single entry would renew all leases.
            tokio::spawn(keeper.run(RENEWAL * number / KEEPERS))
        });
        Self { clients: workers.chain(keepers).collect(), shared }
    }

    /// Waits until the workers were granted this many more leases.
    pub async fn more(&self, grants: u64) -> Result<(), Error> {
        let last = self.shared.granted(|all| all.len()) + grants as usize;
        let look = async || (self.shared.granted(|all| all.len()) >= last).then_some(());
        until(SOON, format!("{grants} more leases are granted"), look).await
    }

    /// Waits until one of `nodes` has granted a lease that was asked for from now on.
    pub async fn next(&self, nodes: &[u64]) -> Result<(), Error> {
        let now = Instant::now();
        let is_next = |grant: &Granted| nodes.contains(&grant.node) && grant.asked >= now;
        let look = async || self.shared.granted(|all| all.iter().any(is_next)).then_some(());
        until(SOON, format!("one of the nodes {nodes:?} grants a lease"), look).await
    }

    /// Stops the clients and returns what they know.
    ///
    /// # Panics
    /// If a client got an answer that breaks the contract.
    pub async fn end(self) -> Record {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        let mut all = Record::default();
        for client in self.clients {
            all.add(client.await.expect("a client that panicked has failed the test"));
        }
        all.grants = self.shared.granted(std::mem::take);
        all
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn granted<T>(&self, with: impl FnOnce(&mut Vec<Granted>) -> T) -> T {
        with(&mut self.grants.lock().expect("no panic while the grants are locked"))
    }
}

struct Worker {
    node: u64,
    client: Client,
    name: String,
    pause: Duration,
    record: Record,
    shared: Arc<Shared>,
}

impl Worker {
    async fn run(mut self) -> Record {
        for number in 0.. {
            if self.shared.is_stopped() {
                break;
            }
            let (lease, key) = (LeaseId::random(), format!("{}/{number}", self.name));
            match self.acquire(lease, &key).await {
                Some(grant) => self.then(number, lease, key, grant).await,
                None => sleep(AGAIN).await,
            }
            sleep(self.pause).await;
        }
        self.record
    }

    /// Repeats an acquire until its answer is definite or the load is stopped.
    async fn acquire(&mut self, lease: LeaseId, key: &str) -> Option<Grant> {
        let (request, asked, mut is_ambiguous) = (try_once(key), Instant::now(), false);
        loop {
            match self.client.acquire(lease, &request).await {
                Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), status })
                    if status == 201 || is_ambiguous =>
                {
                    let (node, token, answered) = (self.node, grant.token, Instant::now());
                    self.shared.granted(|all| all.push(Granted { node, token, asked, answered }));
                    return Some(grant);
                }
                Err(Failure { fate: Fate::NotDone, .. }) if !is_ambiguous => {
                    self.record.not_done.push(lease);
                    return None;
                }
                Err(Failure { fate: Fate::NotDone | Fate::Unknown, .. }) => is_ambiguous = true,
                other => panic!("{key}, which nobody else wants: {other:?}"),
            }
            if self.shared.is_stopped() {
                return None;
            }
            sleep(AGAIN).await;
        }
    }

    async fn then(&mut self, number: u32, lease: LeaseId, key: String, grant: Grant) {
        let ttl_ms = match number % 3 {
            0 => Some(grant.ttl_ms),
            1 => {
                if is_done(self.client.release(lease).await) {
                    self.record.released.push(key);
                }
                return;
            }
            _ => {
                let ttl_ms = MAX_TTL_MS - 1 - number % 1_000;
                is_done(self.client.renew(lease, Ttl::from_ms(ttl_ms)).await).then_some(ttl_ms)
            }
        };
        self.record.held.insert(lease, Held { key, token: grant.token, ttl_ms });
    }
}

/// Whether a call certainly succeeded. It must not be refused.
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

/// A call may fail, but its answer must obey the contract.
fn check(failure: &Failure) {
    assert_ne!(failure.fate, Fate::Malformed, "{failure}");
}

struct Keeper {
    nodes: Vec<Client>,
    name: String,
    record: Record,
    shared: Arc<Shared>,
}

impl Keeper {
    async fn run(mut self, delay: Duration) -> Record {
        sleep(delay).await;
        let lease = LeaseId::random();
        let mut nodes = self.nodes.iter().cycle();
        let mut next = || nodes.next().expect("a cluster has nodes").clone();
        let ttl_ms = Ttl::from_ms(KEPT_TTL_MS).unwrap_or_default();
        let request = AcquireRequest { ttl_ms, ..try_once(&self.name) };
        let acquire = || {
            let (node, request) = (next(), request.clone());
            async move { node.acquire(lease, &request).await }
        };
        let token: Token = match definite(SOON, acquire).await {
            Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) => grant.token,
            other => panic!("{}, which nobody else wants: {other:?}", self.name),
        };
        let mut renewed = Instant::now();
        let (mut asked, mut pause) = (renewed, Duration::ZERO);
        while !self.shared.is_stopped() {
            pause = pause.max(asked.elapsed());
            asked = Instant::now();
            match next().renew(lease, None).await {
                Ok(Reply::Done { body: grant, .. }) => {
                    assert_eq!(grant.token, token, "of {}", self.name);
                    (renewed, pause) = (asked, Duration::ZERO);
                    self.record.renewals += 1;
                }
                Ok(Reply::Refused(_)) if pause > HELD_UP => {
                    eprintln!("{}: lost after a pause of {pause:?}", self.name);
                    break;
                }
                Ok(Reply::Refused(problem)) => {
                    let (name, after) = (&self.name, renewed.elapsed());
                    self.record.lost.push(format!("{name}: {problem:?}, {after:?} after its last renewal"));
                    break;
                }
                Err(failure) => check(&failure),
            }
            sleep(RENEWAL).await;
        }
        self.record
    }
}
