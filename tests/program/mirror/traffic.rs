use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use ringfence_harness::{Acquired, Client, Cluster, RedisServer, Reply, Workers, wait_for};
use ringfence_wire::{AcquireRequest, LeaseId, Ttl};

use super::{connect, hash, number};

const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_millis(600);

/// Clients of all nodes that acquire leases, and release them or let them expire. Each reads the fence of its key while its
/// lease lives.
pub(super) async fn traffic(cluster: &Cluster, redis: &RedisServer) -> Workers {
    let reader = connect(redis).await;
    Workers::start(CLIENTS, |number, work| {
        let (node, reader) = (cluster.nodes()[number % cluster.nodes().len()].client(), reader.clone());
        async move {
            while work.goes_on() {
                let is_granted = hold_once(&node, reader.clone(), number % 3).await;
                work.did(is_granted.into());
            }
        }
    })
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

/// Reads fences continuously: none may fall. It counts how often one rises.
pub(super) fn sample(reader: &MultiplexedConnection) -> Workers {
    Workers::start(1, |_, work| {
        let mut reader = reader.clone();
        async move {
            let mut highest = [0; 3];
            while work.goes_on() {
                for (index, highest) in highest.iter_mut().enumerate() {
                    let fence = number(&hash(&mut reader, &format!("hot/{index}")).await, "fence");
                    assert!(fence >= *highest, "hot/{index} fell from {highest} to {fence}");
                    work.did((fence > *highest).into());
                    *highest = fence;
                }
            }
        }
    })
}
