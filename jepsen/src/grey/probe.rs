//! The load that is the same in each row, so that rows can be compared: leases of free keys, taken and given back through
//! each node, and one lease that is renewed.
//!
//! A request begins each tenth of a second, whether or not earlier ones are answered: what is measured is how long nothing
//! works, not how long one request hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_harness::{Acquired, Client, Reply, try_once};
use ringfence_wire::{AcquireRequest, LeaseId, Token, Ttl};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::figure::{Figure, Figures, longest_gap};
use super::stage::Stage;

const EACH: Duration = Duration::from_millis(100);
const MEMORY_EACH: Duration = Duration::from_millis(500);
/// A node gives up after 5 s.
const PATIENCE: Duration = Duration::from_secs(6);
const TTL_MS: u32 = 10_000;

/// The load, until it is dropped.
pub(super) struct Probe {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// When each node granted, and how long that took.
    grants: BTreeMap<u64, Vec<(Instant, Duration)>>,
    /// The lease that had each token first.
    tokens: BTreeMap<u64, LeaseId>,
    tokens_twice: BTreeSet<u64>,
    renewals: Vec<Instant>,
    lost: bool,
    /// The resident memory of each node, in bytes.
    memory: BTreeMap<u64, Vec<(Instant, u64)>>,
}

impl Probe {
    /// Samples memory alone if the cluster is to be left `idle`.
    pub(super) fn start(stage: &Stage, idle: bool) -> Self {
        let (seen, mut tasks) = (Arc::<Mutex<Seen>>::default(), JoinSet::new());
        let clients: Vec<Client> =
            stage.cluster.nodes().iter().map(|node| node.client().within(PATIENCE)).collect();
        if !idle {
            for (id, client) in stage.ids().into_iter().zip(clients.clone()) {
                tasks.spawn(grants(id, client, Arc::clone(&seen)));
            }
            tasks.spawn(renewals(clients, Arc::clone(&seen)));
        }
        Self { seen, _tasks: tasks }
    }

    /// Notes the memory of each node, as long as it is polled.
    pub(super) async fn weigh(&self, stage: &Stage) {
        loop {
            for node in stage.cluster.nodes() {
                if let Some(bytes) = node.pid().and_then(resident) {
                    let mut seen = self.seen.lock().expect("no panic while it is locked");
                    seen.memory.entry(node.id()).or_default().push((Instant::now(), bytes));
                }
            }
            sleep(MEMORY_EACH).await;
        }
    }

    /// Whether each node has granted, and a renewal was confirmed.
    pub(super) fn works(&self) -> bool {
        let seen = self.seen.lock().expect("no panic while it is locked");
        seen.grants.len() == 3 && !seen.renewals.is_empty()
    }

    /// What came of it from one time until another, of grants through these nodes alone.
    pub(super) fn tell(&self, through: &[u64], from: Instant, until: Instant, figures: &mut Figures) {
        let seen = self.seen.lock().expect("no panic while it is locked");
        let of_node = |id| seen.grants.get(id).map_or(&[][..], Vec::as_slice);
        let gap = |id| {
            let times: Vec<Instant> = of_node(id).iter().map(|(at, _)| *at).collect();
            longest_gap(&times, from, until)
        };
        let no_grant = through.iter().map(gap).max().unwrap_or_default();
        figures.insert(Figure::NoGrant, no_grant.as_secs_f64());
        let during = through.iter().flat_map(of_node).filter(|(at, _)| from < *at && *at < until);
        let mut took: Vec<Duration> = during.map(|(_, took)| *took).collect();
        took.sort_unstable();
        figures.extend(took.get(took.len() / 2).map(|middle| (Figure::GrantTook, middle.as_secs_f64())));
        figures.insert(Figure::NoRenewal, longest_gap(&seen.renewals, from, until).as_secs_f64());
        figures.insert(Figure::LostLeases, f64::from(seen.lost));
    }

    /// How many tokens were granted twice, whenever.
    pub(super) fn tell_tokens(&self, figures: &mut Figures) {
        let seen = self.seen.lock().expect("no panic while it is locked");
        figures.insert(Figure::TokensTwice, seen.tokens_twice.len() as f64);
    }

    /// By how much the memory of a node has grown since `from`.
    pub(super) fn tell_memory(&self, from: Instant, figures: &mut Figures) {
        let seen = self.seen.lock().expect("no panic while it is locked");
        let grown = seen.memory.values().map(|of_node| {
            let most = |is_after| {
                of_node.iter().filter(|(at, _)| (*at > from) == is_after).map(|(_, bytes)| *bytes).max()
            };
            most(true).zip(most(false)).map_or(0, |(after, before)| after.saturating_sub(before))
        });
        figures.insert(Figure::Memory, grown.max().unwrap_or_default() as f64 / f64::from(1 << 20));
    }
}

impl Seen {
    fn granted(&mut self, node: u64, token: Token, lease: LeaseId, asked: Instant) {
        self.grants.entry(node).or_default().push((Instant::now(), asked.elapsed()));
        if *self.tokens.entry(token.0).or_insert(lease) != lease {
            self.tokens_twice.insert(token.0);
        }
    }
}

/// Takes leases and gives them back.
async fn grants(id: u64, client: Client, seen: Arc<Mutex<Seen>>) {
    each(EACH, |number| {
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        async move {
            let (lease, asked) = (LeaseId::random(), Instant::now());
            let acquired = client.acquire(lease, &short(&format!("grey/{id}/{number}"))).await;
            if let Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) =
                acquired
            {
                seen.lock().expect("no panic while it is locked").granted(id, grant.token, lease, asked);
                let _ = client.release(lease).await;
            }
        }
    })
    .await;
}

/// Renews one lease, through one node after the other.
async fn renewals(clients: Vec<Client>, seen: Arc<Mutex<Seen>>) {
    let lease = LeaseId::random();
    let request = short("grey/renewed");
    // It may be granted by a request that is not answered.
    while !matches!(
        clients[0].acquire(lease, &request).await,
        Ok(Reply::Done { body: Acquired::Granted(_) | Acquired::Standing(_), .. })
    ) {
        sleep(EACH).await;
    }
    each(EACH, |number| {
        let (client, seen) = (clients[number % clients.len()].clone(), Arc::clone(&seen));
        async move {
            match client.renew(lease, None).await {
                Ok(Reply::Done { .. }) => {
                    seen.lock().expect("no panic while it is locked").renewals.push(Instant::now())
                }
                Ok(Reply::Refused(_)) => seen.lock().expect("no panic while it is locked").lost = true,
                Err(_) => {}
            }
        }
    })
    .await;
}

/// Begins something each `period`, without waiting for what began before.
async fn each<F: Future<Output = ()> + Send + 'static>(period: Duration, mut begin: impl FnMut(usize) -> F) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut begun = JoinSet::new();
    for number in 0.. {
        ticks.tick().await;
        while begun.try_join_next().is_some() {}
        begun.spawn(begin(number));
    }
}

/// A request for one key, for a short time, that does not wait.
pub(super) fn short(key: &str) -> AcquireRequest {
    let ttl_ms = Ttl::from_ms(TTL_MS).expect("ten seconds may be asked for");
    AcquireRequest { ttl_ms, ..try_once(key) }
}

/// The resident memory of a process.
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}
