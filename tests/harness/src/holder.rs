use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_wire::{AcquireRequest, LeaseId, Ttl};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{Answered, Client, Fate, Reply, try_once};

const TTL_MS: u32 = 3_000;
/// A pause between two renewals.
const PAUSE: Duration = Duration::from_millis(200);
/// Whoever holds a short lease does not wait for one node for long.
const PATIENCE: Duration = Duration::from_millis(500);

/// A client that holds a lease of 3 s by renewing it, through one node after the other.
#[derive(Debug)]
pub struct Holder {
    enough: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Holder {
    /// Takes a lease on the free key `name`, and keeps it through the nodes of `clients`.
    ///
    /// # Panics
    /// If it is not granted.
    pub async fn start(name: &str, clients: Vec<Client>) -> Self {
        let lease = LeaseId::random();
        let wish = AcquireRequest { ttl_ms: Ttl::from_ms(TTL_MS).unwrap_or_default(), ..try_once(name) };
        let grant = clients[0].acquire(lease, &wish).await.done().grant();
        let enough = Arc::<AtomicBool>::default();
        let is_enough = Arc::clone(&enough);
        let task = tokio::spawn(async move {
            for client in clients.iter().cycle() {
                if is_enough.load(Ordering::Relaxed) {
                    return;
                }
                match client.within(PATIENCE).renew(lease, None).await {
                    Ok(Reply::Done { body, .. }) => {
                        assert_eq!(Some(body.token), grant.as_ref().map(|grant| grant.token));
                    }
                    Ok(Reply::Refused(problem)) => panic!("a lease that was renewed is lost: {problem:?}"),
                    Err(failure) => assert_ne!(failure.fate, Fate::Malformed, "{failure}"),
                }
                sleep(PAUSE).await;
            }
        });
        Self { enough, task }
    }

    /// Ends its renewals.
    ///
    /// # Panics
    /// If the lease was lost meanwhile.
    pub async fn stop(self) {
        self.enough.store(true, Ordering::Relaxed);
        self.task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    }
}
