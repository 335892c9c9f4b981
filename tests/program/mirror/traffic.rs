use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use ringfence_harness::{Acquired, Client, Cluster, RedisServer, Reply, until, wait_for};
use ringfence_wire::{AcquireRequest, LeaseId, Ttl};
use tokio::task::JoinHandle;

use super::{SOON, connect, hash, number};

const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_millis(600);

/// Clients of all nodes that acquire leases, and release them or let them expire. Each reads the fence of its key while its
/// lease lives.
pub(super) struct Traffic {
    stopped: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Traffic {
    pub(super) async fn start(cluster: &Cluster, redis: &RedisServer) -> Self {
        let (stopped, grants) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let node = cluster.nodes()[number % cluster.nodes().len()].client();
            let (stopped, grants) = (Arc::clone(&stopped), Arc::clone(&grants));
            let reader = connect(redis).await;
            clients.push(tokio::spawn(async move {
                while !stopped.load(Ordering::Relaxed) {
                    if hold_once(&node, reader.clone(), number % 3).await {
                        grants.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
        Self { stopped, grants, clients }
    }

    /// Waits for this many more grants.
    pub(super) async fn go_on(&self, more: u64) {
        let before = self.grants.load(Ordering::Relaxed);
        let look = || async { (self.grants.load(Ordering::Relaxed) >= before + more).then_some(()) };
        until(SOON, format!("{more} more grants"), look).await.unwrap();
    }

    pub(super) async fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// Acquires one lease and ends it. While it certainly lives, the fence in Redis must not exceed its token.
async fn hold_once(node: &Client, mut reader: MultiplexedConnection, contended: usize) -> bool {
    let name = format!("hot/{contended}");
    let (lease, sent) = (LeaseId::random(), Instant::now());
    let request =
        AcquireRequest { ttl_ms: Ttl::from_ms(TTL.as_millis() as u32).unwrap(), ..wait_for(&name, 300) };
    let Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) =
        node.within(Duration::from_secs(2)).acquire(lease, &request).await
    else {
        return false;
    };
    for _ in 0..3 {
        let read: redis::RedisResult<Option<u64>> = redis::cmd("HGET")
            .arg(format!("ringfence:{{{name}}}"))
            .arg("fence")
            .query_async(&mut reader)
            .await;
        if let Ok(Some(fence)) = read
            && sent.elapsed() < TTL
        {
            assert!(fence <= grant.token.0, "{name}: {fence} is above the live token {}", grant.token);
        }
    }
    if lease.to_string().ends_with(['0', '1', '2', '3']) {
        tokio::time::sleep(TTL / 2).await;
    } else {
        let _ = node.release(lease).await;
    }
    true
}

/// Reads fences continuously: none may fall. Returns how many rises it saw.
pub(super) fn sample(mut reader: MultiplexedConnection) -> (Arc<AtomicBool>, JoinHandle<u64>) {
    let stopped = Arc::<AtomicBool>::default();
    let is_stopped = Arc::clone(&stopped);
    let sampler = tokio::spawn(async move {
        let (mut highest, mut seen) = ([0; 3], 0);
        while !is_stopped.load(Ordering::Relaxed) {
            for (index, highest) in highest.iter_mut().enumerate() {
                let fence = number(&hash(&mut reader, &format!("hot/{index}")).await, "fence");
                assert!(fence >= *highest, "hot/{index} fell from {highest} to {fence}");
                seen += u64::from(fence > *highest);
                *highest = fence;
            }
        }
        seen
    });
    (stopped, sampler)
}
