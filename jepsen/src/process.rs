//! A process of the load: a client that makes one call at a time, and pauses where real clients do.
//!
//! Some processes stay with one node, some follow the leader, and some change nodes with every call, so that repeats arrive
//! at other nodes. Half of them wait long enough for a node's own 504, and share their connections over the Redis protocol, as the threads
//! of a program do; the others hang up before.

mod library;
mod resp;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use ringfence_harness::{Client, Consistency};
use ringfence_laws::history::{Conclusion, HUNG_UP, Invocation};
use ringfence_wire::{AcquireRequest, BatchAcquire, Holder, Metadata, Ttl, Wait};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::Clock;
use crate::pauses::Pauses;
use crate::recorder::{self, Recorder};
use crate::registers::Registers;
use crate::sights::Leader;

pub(crate) use self::resp::Connections as RespConnections;

/// How long a call may take beyond its wait. A node gives up after 5 s.
const PATIENT: Duration = Duration::from_millis(6_000);
const IMPATIENT: Duration = Duration::from_millis(1_500);
/// How long a request is repeated. The cluster remembers the id of a lease for 60 s after its end.
const REPEATS_FOR: Duration = Duration::from_secs(15);

/// More than there are processes: concurrent calls of one have its number plus multiples of this.
const LANES: u32 = 100;
/// The process that makes the final calls.
const IN_THE_END: u32 = 1_000;

/// What all processes of a run share.
#[derive(Debug)]
pub struct Load {
    /// The clock of the run.
    pub clock: Clock,
    /// When the run is over: no call begins later.
    pub over: Over,
    /// A client of each node, in the order of their ids, from 1.
    pub clients: Vec<Client>,
    /// The client that all processes share that use the client library.
    pub library: ringfence_client::Client,
    /// The leader.
    pub leader: Arc<Leader>,
    /// Records the calls.
    pub recorder: Arc<Recorder>,
    /// The guarded registers.
    pub registers: Registers,
    /// When calls may begin.
    pub pace: Pace,
    /// Where processes can be paused.
    pub pauses: Arc<Pauses>,
    /// Connections to where nodes speak the Redis protocol, which some processes share.
    pub(crate) resp: RespConnections,
}

/// When a run is over.
#[derive(Debug)]
pub struct Over(Mutex<Instant>);

/// Spreads the calls of all processes randomly around a rate, as Jepsen's `stagger` does.
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
    /// Its connections to where nodes speak the Redis protocol.
    resp: RespConnections,
}

/// Which node a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Pinned(u64),
    Leader,
    /// The next node after this one.
    Hops(u64),
}

impl Load {
    /// Makes a call after the end of the run, to record the final state.
    pub(crate) async fn ask_in_the_end(&self, client: &Client, invocation: Invocation) -> Conclusion {
        let id = self.recorder.begin(IN_THE_END, Some(1), invocation.clone());
        let conclusion = self.answer(client, IN_THE_END, &invocation).await;
        self.recorder.end(id, conclusion.clone());
        conclusion
    }

    fn client(&self, node: u64) -> &Client {
        let place = usize::try_from(node - 1).expect("nodes are few, and counted from 1");
        &self.clients[place]
    }

    async fn answer(&self, client: &Client, process: u32, invocation: &Invocation) -> Conclusion {
        match self.registers.ask(invocation) {
            Some(conclusion) => conclusion,
            None => send(client, process, invocation).await,
        }
    }
}

impl Over {
    /// At this time, unless it is over [now](Self::now) before.
    pub fn at(at: Instant) -> Self {
        Self(Mutex::new(at))
    }

    /// Ends the run.
    pub fn now(&self) {
        *self.0.lock().expect("no panic while the end is locked") = Instant::now();
    }

    fn get(&self) -> Instant {
        *self.0.lock().expect("no panic while the end is locked")
    }
}

impl Pace {
    /// At most this many calls a second.
    pub fn new(rate: u32, seed: u64, clock: Clock) -> Self {
        let mean_us = 1_000_000 / u64::from(rate.max(1));
        Self { mean_us, next: Mutex::new((clock.instant(Duration::ZERO), Rng::with_seed(seed))) }
    }

    /// When the next call may begin.
    fn next(&self) -> Instant {
        let mut next = self.next.lock().expect("no panic while the pace is locked");
        let pause = Duration::from_micros(next.1.u64(0..=2 * self.mean_us));
        // Missed calls are not made up for.
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
        let resp = if number.is_multiple_of(2) { load.resp.clone() } else { RespConnections::default() };
        Self { number, route, patience, load, resp }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.load.over.get()
    }

    /// Makes and records a call. `None` if the run is over: no call was made.
    pub async fn ask(&mut self, invocation: Invocation) -> Option<Conclusion> {
        self.ask_for(invocation, None).await
    }

    /// The same, but hangs up after `hangs_up_ms`, if given.
    pub async fn ask_for(&mut self, invocation: Invocation, hangs_up_ms: Option<u32>) -> Option<Conclusion> {
        self.go_on_at(self.load.pace.next()).await?;
        let guarded = matches!(invocation, Invocation::Read { .. } | Invocation::Write { .. });
        let node = (!guarded).then(|| self.route());
        let id = self.load.recorder.begin(self.number, node, invocation.clone());
        let client = self.load.client(node.unwrap_or(1)).within(self.patience);
        let (load, resp, patience) = (&self.load, &self.resp, self.patience);
        let answer = async {
            match node.filter(|_| invocation.is_resp()) {
                Some(node) => resp.ask(node, &client, &invocation, patience).await,
                None => load.answer(&client, self.number, &invocation).await,
            }
        };
        let conclusion = match hangs_up_ms {
            None => answer.await,
            Some(ms) => timeout(Duration::from_millis(ms.into()), answer)
                .await
                .unwrap_or_else(|_| Conclusion::Unknown { why: format!("{HUNG_UP} after {ms} ms") }),
        };
        self.load.recorder.end(id, conclusion.clone());
        Some(conclusion)
    }

    /// This process under another number, for concurrent calls.
    pub(crate) fn lane(&self, lane: u32) -> Self {
        let number = self.number + LANES * (lane + 1);
        let resp = RespConnections::default();
        Self { number, route: self.route, patience: self.patience, load: Arc::clone(&self.load), resp }
    }

    /// Acquires for all lanes without waiting, in one batch. Returns their outcomes.
    pub(crate) async fn ask_together(&mut self, lanes: &[(Self, Invocation)]) -> Option<Vec<Conclusion>> {
        self.go_on_at(self.load.pace.next()).await?;
        let node = self.route();
        let calls = lanes.iter().map(|(lane, invocation)| (lane.number, invocation.clone())).collect();
        let ids = self.load.recorder.begin_batch(node, calls);
        let client = self.load.client(node).within(self.patience);
        let wishes =
            lanes.iter().filter_map(|(lane, invocation)| together(lane.number, invocation)).collect();
        let conclusion = recorder::acquired_together(client.acquire_batch(wishes).await, ids.len());
        for (id, conclusion) in ids.into_iter().zip(&conclusion) {
            self.load.recorder.end(id, conclusion.clone());
        }
        Some(conclusion)
    }

    /// Repeats a call until its answer is definite, for as long as that is safe. The last answer may still be none.
    pub async fn repeat(&mut self, invocation: Invocation) -> Option<Conclusion> {
        let began = Instant::now();
        loop {
            let conclusion = self.ask(invocation.clone()).await?;
            let is_settled = !matches!(conclusion, Conclusion::Unknown { .. } | Conclusion::NotDone { .. });
            if is_settled || began.elapsed() > REPEATS_FOR {
                return Some(conclusion);
            }
        }
    }

    /// Sleeps, and longer if clients are paused meanwhile. `None` if the run is over.
    pub async fn rest(&self, ms: u32) -> Option<()> {
        let rested = self.go_on_at(Instant::now() + Duration::from_millis(ms.into())).await;
        self.load.pauses.here().await;
        rested
    }

    async fn go_on_at(&self, at: Instant) -> Option<()> {
        sleep_until(at.min(self.load.over.get())).await;
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

/// An acquire as an operation of a batch.
fn together(process: u32, invocation: &Invocation) -> Option<BatchAcquire> {
    let Invocation::Acquire { lease, keys, ttl_ms, wait_ms: 0, keep_place } = invocation else { return None };
    Some(BatchAcquire {
        lease_id: *lease,
        keys: keys.clone(),
        ttl_ms: Ttl::from_ms(*ttl_ms).expect("workloads draw times that may be asked for"),
        keep_place: *keep_place,
        holder: Holder::new(&format!("process {process}")),
        metadata: Metadata::default(),
    })
}

/// Sends a call to a node, as the process with this number.
async fn send(client: &Client, process: u32, invocation: &Invocation) -> Conclusion {
    let consistency = |local: bool| if local { Consistency::Local } else { Consistency::Linearizable };
    let ttl = |ms| Ttl::from_ms(ms).expect("workloads draw times that may be asked for");
    match *invocation {
        Invocation::Acquire { lease, ref keys, ttl_ms, wait_ms, keep_place } => {
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
        Invocation::Renew { lease, ttl_ms } => recorder::renewed(client.renew(lease, ttl_ms.map(ttl)).await),
        Invocation::Release { lease } => recorder::done(client.release(lease).await),
        Invocation::Lease { lease, local } => recorder::lease(client.lease(lease, consistency(local)).await),
        Invocation::Key { ref key, local } => recorder::key(client.key(key, consistency(local)).await),
        Invocation::Validate { ref key, token, local } => {
            recorder::verdict(client.validate(key, token, consistency(local)).await)
        }
        Invocation::Revoke { ref key, token } => recorder::done(client.revoke(key, token).await),
        _ => Conclusion::NotDone { why: "not a call of a node over HTTP".into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_keeps_its_rate_and_does_not_catch_up() {
        let clock = Clock::start();
        let pace = Pace::new(100, 7, clock);
        let first = pace.next();
        let later = (0..1_000).map(|_| pace.next()).last().unwrap_or(first);
        let took = later - first;
        let most = Duration::from_secs(11) + Duration::from_micros(clock.now_us());
        assert!(Duration::from_secs(9) < took && took < most, "{took:?} for 1,000 calls");
        let idle = Pace::new(1_000_000, 7, clock);
        while clock.now_us() < 1_000 {}
        let now = Instant::now();
        assert!(idle.next() >= now, "missed calls are made up for");
    }
}
