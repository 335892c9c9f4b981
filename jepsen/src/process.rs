//! A process of the load: a client that makes one call at a time, and pauses where real ones do.
//!
//! Some stay with one node, some follow the leader, some hop from node to node, so that what one of them repeats arrives
//! elsewhere. Half of them are patient enough to hear a node's own "maybe done"; the others hang up before.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use ringfence_harness::{Client, Consistency};
use ringfence_wire::{AcquireRequest, BatchAcquire, Holder, Metadata, Ttl, Wait};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::Clock;
use crate::history::{Asked, Came};
use crate::pauses::Pauses;
use crate::recorder::{self, Recorder};
use crate::registers::Registers;
use crate::sights::Leader;

/// How long a call may take beyond what it waits for. A node itself gives up after 5 s.
const PATIENT: Duration = Duration::from_millis(6_000);
const IMPATIENT: Duration = Duration::from_millis(1_500);
/// For how long the same request is repeated. The cluster remembers an id for 60 s after the end of its lease.
const REPEATS_FOR: Duration = Duration::from_secs(15);

/// There are fewer processes than this: what one does at the same time has its number and so many more.
const LANES: u32 = 100;
/// The process that makes the calls of the end.
const IN_THE_END: u32 = 1_000;

/// What all processes of a run have in common.
#[derive(Debug)]
pub struct Load {
    /// When it happens.
    pub clock: Clock,
    /// No call begins after this.
    pub until: Instant,
    /// A client of each node, in the order of their ids, from 1.
    pub clients: Vec<Client>,
    /// Who leads.
    pub leader: Arc<Leader>,
    /// Where calls are written down.
    pub recorder: Arc<Recorder>,
    /// What is guarded.
    pub registers: Registers,
    /// When calls may begin.
    pub pace: Pace,
    /// Where processes may be held.
    pub pauses: Arc<Pauses>,
}

/// Spreads the calls of all processes over time, at random around a rate, as Jepsen's `stagger` does.
#[derive(Debug)]
pub struct Pace {
    mean_us: u64,
    next: Mutex<(Instant, Rng)>,
}

/// One client.
#[derive(Debug)]
pub struct Process {
    number: u32,
    route: Route,
    patience: Duration,
    load: Arc<Load>,
}

/// Which node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Pinned(u64),
    Leader,
    /// The one after this one.
    Hops(u64),
}

impl Load {
    /// Asks after the time was over: to see what is there in the end.
    pub(crate) async fn ask_in_the_end(&self, client: &Client, asked: Asked) -> Came {
        let id = self.recorder.begin(IN_THE_END, Some(1), asked.clone());
        let came = self.answer(client, IN_THE_END, &asked).await;
        self.recorder.end(id, came.clone());
        came
    }

    fn client(&self, node: u64) -> &Client {
        let place = usize::try_from(node - 1).expect("nodes are few, and counted from 1");
        &self.clients[place]
    }

    async fn answer(&self, client: &Client, process: u32, asked: &Asked) -> Came {
        match self.registers.ask(asked) {
            Some(came) => came,
            None => send(client, process, asked).await,
        }
    }
}

impl Pace {
    /// So many calls in a second, if the processes can.
    pub fn new(rate: u32, seed: u64, clock: Clock) -> Self {
        let mean_us = 1_000_000 / u64::from(rate.max(1));
        Self { mean_us, next: Mutex::new((clock.instant(Duration::ZERO), Rng::with_seed(seed))) }
    }

    /// When the next call may begin.
    fn next(&self) -> Instant {
        let mut next = self.next.lock().expect("no panic while the pace is locked");
        let pause = Duration::from_micros(next.1.u64(0..=2 * self.mean_us));
        // What could not be done in time is not made up for.
        next.0 = next.0.max(Instant::now()) + pause;
        next.0
    }
}

impl Process {
    /// The process with this number, from 0.
    pub fn new(number: u32, load: Arc<Load>) -> Self {
        let nodes = load.clients.len() as u64;
        let node = u64::from(number / 3) % nodes + 1;
        let route = match number % 3 {
            0 => Route::Pinned(node),
            1 => Route::Hops(node),
            _ => Route::Leader,
        };
        let patience = if number.is_multiple_of(2) { PATIENT } else { IMPATIENT };
        Self { number, route, patience, load }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it is to begin nothing more.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.load.until
    }

    /// Asks, and writes down what comes of it. `None` once the time is over: nothing was asked.
    pub async fn ask(&mut self, asked: Asked) -> Option<Came> {
        self.ask_for(asked, None).await
    }

    /// The same, but hangs up after `hangs_up_ms`, if that is given.
    pub async fn ask_for(&mut self, asked: Asked, hangs_up_ms: Option<u32>) -> Option<Came> {
        self.go_on_at(self.load.pace.next()).await?;
        let guarded = matches!(asked, Asked::Read { .. } | Asked::Write { .. });
        let node = (!guarded).then(|| self.route());
        let id = self.load.recorder.begin(self.number, node, asked.clone());
        let client = self.load.client(node.unwrap_or(1)).within(self.patience);
        let answer = self.load.answer(&client, self.number, &asked);
        let came = match hangs_up_ms {
            None => answer.await,
            Some(ms) => timeout(Duration::from_millis(ms.into()), answer)
                .await
                .unwrap_or_else(|_| Came::Unknown { why: format!("it hung up after {ms} ms") }),
        };
        self.load.recorder.end(id, came.clone());
        Some(came)
    }

    /// The same process, for what it does at the same time: with another number.
    pub(crate) fn lane(&self, lane: u32) -> Self {
        let number = self.number + LANES * (lane + 1);
        Self { number, route: self.route, patience: self.patience, load: Arc::clone(&self.load) }
    }

    /// Acquires without waiting, in one batch, each for a lane. What came of each.
    pub(crate) async fn ask_together(&mut self, lanes: &[(Self, Asked)]) -> Option<Vec<Came>> {
        self.go_on_at(self.load.pace.next()).await?;
        let node = self.route();
        let calls = lanes.iter().map(|(lane, asked)| (lane.number, asked.clone())).collect();
        let ids = self.load.recorder.begin_batch(node, calls);
        let client = self.load.client(node).within(self.patience);
        let wishes = lanes.iter().filter_map(|(lane, asked)| together(lane.number, asked)).collect();
        let came = recorder::acquired_together(client.acquire_batch(wishes).await, ids.len());
        for (id, came) in ids.into_iter().zip(&came) {
            self.load.recorder.end(id, came.clone());
        }
        Some(came)
    }

    /// Asks until the answer is definite, for as long as that is safe: hopping, each time another node. The last answer
    /// may still be none.
    pub async fn repeat(&mut self, asked: Asked) -> Option<Came> {
        let began = Instant::now();
        loop {
            let came = self.ask(asked.clone()).await?;
            let is_settled = !matches!(came, Came::Unknown { .. } | Came::NotDone { .. });
            if is_settled || began.elapsed() > REPEATS_FOR {
                return Some(came);
            }
        }
    }

    /// Does nothing for a while, and for longer if it is held here. `None` once the time is over.
    pub async fn rest(&self, ms: u32) -> Option<()> {
        let rested = self.go_on_at(Instant::now() + Duration::from_millis(ms.into())).await;
        self.load.pauses.here().await;
        rested
    }

    async fn go_on_at(&self, at: Instant) -> Option<()> {
        sleep_until(at.min(self.load.until)).await;
        (!self.is_over()).then_some(())
    }

    fn route(&mut self) -> u64 {
        let nodes = self.load.clients.len() as u64;
        match &mut self.route {
            Route::Pinned(node) => *node,
            Route::Leader => self.load.leader.get(),
            Route::Hops(node) => {
                *node = *node % nodes + 1;
                *node
            }
        }
    }
}

/// An acquire, as it stands in a batch.
fn together(process: u32, asked: &Asked) -> Option<BatchAcquire> {
    let Asked::Acquire { lease, keys, ttl_ms, wait_ms: 0, keep_place } = asked else { return None };
    Some(BatchAcquire {
        lease_id: *lease,
        keys: keys.clone(),
        ttl_ms: Ttl::from_ms(*ttl_ms).expect("workloads draw times that may be asked for"),
        keep_place: *keep_place,
        holder: Holder::new(&format!("process {process}")),
        metadata: Metadata::default(),
    })
}

/// Asks a node, as the process with this number.
async fn send(client: &Client, process: u32, asked: &Asked) -> Came {
    let consistency = |local: bool| if local { Consistency::Local } else { Consistency::Linearizable };
    let ttl = |ms| Ttl::from_ms(ms).expect("workloads draw times that may be asked for");
    match asked {
        &Asked::Acquire { lease, ref keys, ttl_ms, wait_ms, keep_place } => {
            let wish = AcquireRequest {
                keys: keys.clone(),
                ttl_ms: ttl(ttl_ms),
                wait_ms: Wait::from_ms(wait_ms).expect("workloads draw waits that may be asked for"),
                keep_place,
                holder: Holder::new(&format!("process {process}")),
                metadata: Metadata::default(),
            };
            recorder::acquired(client.acquire_mirrored(lease, &wish).await)
        }
        &Asked::Renew { lease, ttl_ms } => recorder::renewed(client.renew(lease, ttl_ms.map(ttl)).await),
        &Asked::Release { lease } => recorder::done(client.release(lease).await),
        &Asked::Lease { lease, local } => recorder::lease(client.lease(lease, consistency(local)).await),
        &Asked::Key { ref key, local } => recorder::key(client.key(key, consistency(local)).await),
        &Asked::Validate { ref key, token, local } => {
            recorder::verdict(client.validate(key, token, consistency(local)).await)
        }
        &Asked::Revoke { ref key, token } => recorder::done(client.revoke(key, token).await),
        Asked::Transfer { .. } | Asked::Read { .. } | Asked::Write { .. } => {
            Came::NotDone { why: "no process of the load asks a node for this".into() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_keeps_to_its_rate_and_makes_up_for_nothing() {
        let clock = Clock::start();
        let pace = Pace::new(100, 7, clock);
        let first = pace.next();
        let later = (0..1_000).map(|_| pace.next()).last().unwrap_or(first);
        let took = later - first;
        assert!(Duration::from_secs(9) < took && took < Duration::from_secs(11), "{took:?} for 1,000 calls");
        let idle = Pace::new(1_000_000, 7, clock);
        while clock.now_us() < 1_000 {}
        let now = Instant::now();
        assert!(idle.next() >= now, "what was not begun in time is begun all at once");
    }
}
