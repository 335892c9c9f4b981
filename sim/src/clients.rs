//! The clients: what they ask, and what they learn. They run as one process beside the nodes.

mod sets;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use ringfence_laws::history::{Call, Conclusion, HUNG_UP, Invocation};
use ringfence_wire::{AcquireRequest, Key, LeaseId, Metadata, Mode, Token, Ttl, Wait, WantedKey};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// How long a client waits for an answer beyond what it asked to wait for.
const PATIENCE: [u64; 3] = [300, 1_500, 6_500];
/// For how long the same request is repeated: an id is remembered for 60 s after the end of its lease.
const REPEATS_FOR: Duration = Duration::from_secs(15);

/// How the load looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// How many clients.
    pub clients: u32,
    /// How many keys they ask for.
    pub keys: u32,
    /// The mean pause between two calls of a client, in milliseconds.
    pub pause_ms: u32,
    /// How many of 100 acquires are for shared keys.
    pub shared: u32,
    /// How many of 100 answers are lost.
    pub lost: u32,
    /// The longest time-to-live, in milliseconds.
    #[serde(default = "longest")]
    pub ttl_ms: u32,
    /// How many bytes of metadata a lease has.
    #[serde(default)]
    pub metadata: usize,
    /// How many of 100 leases clients acquire over RESP.
    #[serde(default)]
    pub sets: u32,
}

impl Load {
    /// The request of an acquire that a client drew.
    pub(crate) fn acquire(
        &self,
        keys: Vec<WantedKey>,
        ttl_ms: u32,
        wait_ms: u32,
        keep_place: bool,
    ) -> AcquireRequest {
        let entries = (self.metadata > 0).then(|| ("m".to_owned(), "-".repeat(self.metadata)));
        let metadata = Metadata::new(entries.into_iter().collect());
        AcquireRequest {
            keys,
            ttl_ms: ttl(ttl_ms),
            wait_ms: Wait::from_ms(wait_ms).expect("clients draw waits that may be asked for"),
            keep_place,
            holder: None,
            metadata: metadata.expect("plans have metadata of a size that is allowed"),
        }
    }
}

/// A time-to-live that a client drew.
pub(crate) fn ttl(ms: u32) -> Ttl {
    Ttl::from_ms(ms).expect("clients draw times that may be asked for")
}

/// The longest time-to-live, as a rule.
pub(crate) fn longest() -> u32 {
    3_000
}

/// Between the clients and the nodes: requests and answers that the world passes on between two steps.
#[derive(Default)]
pub struct Desk {
    requests: Mutex<Vec<Request>>,
    calls: Mutex<Vec<Call>>,
}

/// One request on its way to a node.
pub struct Request {
    /// The node.
    pub node: u64,
    /// The number of the call.
    pub call: usize,
    /// What is asked.
    pub invocation: Invocation,
    /// Where the answer goes. Closed once the client has given up.
    pub reply: oneshot::Sender<Conclusion>,
}

impl Desk {
    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests())
    }

    /// All calls, in the order they were sent.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls())
    }

    /// Notes that the client of this call had hung up before the answer came.
    pub fn came_too_late(&self, call: usize) {
        let why = "the answer came too late".to_owned();
        self.calls()[call].conclusion = Conclusion::Unknown { why };
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().expect("nothing panics while the requests are locked")
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().expect("nothing panics while the calls are locked")
    }
}

/// One client.
pub struct Client {
    /// Its number.
    pub number: u32,
    /// What it draws from.
    pub rng: Rng,
    /// The load that it is part of.
    pub load: Load,
    /// Where it asks.
    pub desk: Arc<Desk>,
    /// When the run began, on the clients' clock.
    pub began: Instant,
    /// Nothing is begun after this.
    pub until: Instant,
    /// The ids of the nodes there are.
    pub nodes: Arc<Mutex<Vec<u64>>>,
}

impl Client {
    /// Asks for one thing after the other until the time is over.
    pub async fn run(mut self) {
        while Instant::now() < self.until {
            self.pause().await;
            // Without such clients, a plan must draw the same as before.
            let is_resp = self.load.sets > 0 && self.rng.u32(0..100) < self.load.sets;
            match self.rng.u32(0..100) {
                0..70 if is_resp => self.set().await,
                0..70 => self.hold().await,
                70..82 if is_resp => {
                    let key = self.key();
                    self.ask(Invocation::Get { key }).await;
                }
                70..82 => {
                    let invocation = Invocation::Key { key: self.key(), local: self.rng.u32(0..10) < 3 };
                    self.ask(invocation).await;
                }
                82..90 => self.validate().await,
                90..94 => self.revoke().await,
                _ => self.forestall().await,
            }
        }
    }

    /// Takes a lease, uses it, and ends it or leaves it to its end.
    async fn hold(&mut self) {
        let count = *self.rng.choice(&[1, 1, 1, 1, 2, 3]).unwrap_or(&1);
        let mut keys: Vec<Key> = (0..self.load.keys).map(key_number).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        let claims: Vec<WantedKey> =
            keys.into_iter().map(|key| WantedKey { key, mode: self.mode() }).collect();
        let lease = LeaseId::from_u128(self.rng.u128(1..)).expect("it is not 0");
        let wait_ms = if self.rng.bool() { self.rng.u32(100..3_000) } else { 0 };
        let acquire = Invocation::Acquire {
            lease,
            keys: claims.clone(),
            ttl_ms: self.ttl_ms(),
            wait_ms,
            keep_place: self.rng.bool(),
        };
        let mut conclusion = self.ask(acquire.clone()).await;
        if matches!(conclusion, Conclusion::Unknown { .. } | Conclusion::NotDone { .. }) {
            if self.rng.u32(0..4) == 0 {
                return;
            }
            conclusion = self.repeat(acquire.clone()).await;
        }
        for _ in 0..self.rng.u32(0..4) {
            if matches!(conclusion, Conclusion::Waiting { .. }) {
                conclusion = self.repeat(acquire.clone()).await;
            }
        }
        let token = match conclusion {
            Conclusion::Granted { grant, .. } => grant.token,
            Conclusion::Waiting { .. } if self.rng.bool() => {
                self.repeat(Invocation::Release { lease }).await;
                return;
            }
            _ => return,
        };
        let key = claims[0].key.clone();
        for _ in 0..self.rng.u32(0..5) {
            self.pause().await;
            let local = self.rng.u32(0..10) < 3;
            let invocation = match self.rng.u32(0..10) {
                0..4 => {
                    let other = self.rng.u32(0..10) < 3;
                    Invocation::Renew { lease, ttl_ms: other.then(|| self.ttl_ms()) }
                }
                4 => acquire.clone(),
                5..7 => Invocation::Lease { lease, local },
                7..9 => Invocation::Key { key: key.clone(), local },
                _ => Invocation::Validate { key: key.clone(), token, local },
            };
            self.ask(invocation).await;
        }
        match self.rng.u32(0..6) {
            0..3 => drop(self.repeat(Invocation::Release { lease }).await),
            3 => drop(self.ask(Invocation::Revoke { key, token }).await),
            _ => {}
        }
    }

    async fn validate(&mut self) {
        let (key, local) = (self.key(), self.rng.bool());
        let token = self.seen(&key, local).await.pop().unwrap_or(Token(1));
        let local = self.rng.bool();
        self.ask(Invocation::Validate { key, token, local }).await;
    }

    async fn revoke(&mut self) {
        let key = self.key();
        if let Some(&token) = self.seen(&key, true).await.first() {
            self.ask(Invocation::Revoke { key, token }).await;
        }
    }

    /// Releases a lease that nobody has seen, and then asks for it: that must not grant.
    async fn forestall(&mut self) {
        let lease = LeaseId::from_u128(self.rng.u128(1..)).expect("it is not 0");
        let keys = vec![WantedKey { key: self.key(), mode: Mode::Exclusive }];
        self.repeat(Invocation::Release { lease }).await;
        self.ask(Invocation::Acquire { lease, keys, ttl_ms: 1_000, wait_ms: 0, keep_place: false }).await;
    }

    /// The tokens that a look at `key` shows, the oldest first.
    async fn seen(&mut self, key: &Key, local: bool) -> Vec<Token> {
        match self.ask(Invocation::Key { key: key.clone(), local }).await {
            Conclusion::Key { view } => view.holders.iter().map(|holder| holder.token).collect(),
            _ => Vec::new(),
        }
    }

    /// Asks until the answer is definite, for as long as that is safe.
    async fn repeat(&mut self, invocation: Invocation) -> Conclusion {
        let began = Instant::now();
        loop {
            let conclusion = self.ask(invocation.clone()).await;
            let is_settled = !matches!(conclusion, Conclusion::Unknown { .. } | Conclusion::NotDone { .. });
            if is_settled || began.elapsed() > REPEATS_FOR || Instant::now() >= self.until {
                return conclusion;
            }
            self.pause().await;
        }
    }

    async fn ask(&mut self, invocation: Invocation) -> Conclusion {
        let node = self.node();
        let patience = Duration::from_millis(self.rng.choice(PATIENCE).unwrap_or(PATIENCE[0]));
        self.ask_node(node, invocation, patience).await
    }

    /// Asks, and hangs up if there is no answer by then.
    async fn ask_within(&mut self, invocation: Invocation, patience: Duration) -> Conclusion {
        let node = self.node();
        self.ask_node(node, invocation, patience).await
    }

    fn node(&mut self) -> u64 {
        let nodes = self.nodes.lock().expect("nothing panics while the nodes are locked");
        nodes[self.rng.usize(..nodes.len())]
    }

    async fn ask_node(&mut self, node: u64, invocation: Invocation, patience: Duration) -> Conclusion {
        let is_lost = self.rng.u32(0..100) < self.load.lost;
        if Instant::now() >= self.until {
            return Conclusion::NotDone { why: "the time is over".to_owned() };
        }
        ask(&self.desk, self.began, self.number, node, invocation, patience, is_lost).await
    }

    async fn pause(&mut self) {
        let ms = self.rng.u32(0..=2 * self.load.pause_ms);
        sleep(Duration::from_millis(ms.into())).await;
    }

    fn ttl_ms(&mut self) -> u32 {
        self.rng.u32(300..self.load.ttl_ms)
    }

    fn key(&mut self) -> Key {
        key_number(self.rng.u32(..self.load.keys))
    }

    fn mode(&mut self) -> Mode {
        match self.rng.u32(0..100) < self.load.shared {
            false => Mode::Exclusive,
            true if self.rng.bool() => Mode::Shared { limit: None },
            true => Mode::Shared { limit: NonZeroU32::new(self.rng.u32(2..4)) },
        }
    }
}

/// Asks `node` on behalf of client `number`, and records what comes of it.
pub async fn ask(
    desk: &Desk,
    began: Instant,
    number: u32,
    node: u64,
    invocation: Invocation,
    patience: Duration,
    is_lost: bool,
) -> Conclusion {
    let now_us = || u64::try_from(began.elapsed().as_micros()).expect("a run takes hours, not ages");
    let waits = match &invocation {
        Invocation::Acquire { wait_ms, .. } => Duration::from_millis((*wait_ms).into()),
        _ => Duration::ZERO,
    };
    let sent_us = now_us();
    let place = {
        let mut calls = desk.calls();
        let id = calls.len() as u64;
        let conclusion = Conclusion::Unknown { why: "it was under way at the end".to_owned() };
        let (process, node, invocation) = (number, Some(node), invocation.clone());
        calls.push(Call {
            id,
            process,
            node,
            batch: None,
            sent_us,
            ended_us: u64::MAX,
            invocation,
            conclusion,
        });
        calls.len() - 1
    };
    let (reply, answer) = oneshot::channel();
    desk.requests().push(Request { node, call: place, invocation, reply });
    let conclusion = match timeout(patience + waits, answer).await {
        Ok(Ok(_)) if is_lost => Conclusion::Unknown { why: "the answer was lost".to_owned() },
        Ok(Ok(conclusion)) => conclusion,
        Ok(Err(_)) => Conclusion::Unknown { why: "the connection broke".to_owned() },
        Err(_) => Conclusion::Unknown { why: HUNG_UP.to_owned() },
    };
    let mut calls = desk.calls();
    (calls[place].ended_us, calls[place].conclusion) = (now_us(), conclusion.clone());
    conclusion
}

/// One of the keys that clients ask for.
pub fn key_number(number: u32) -> Key {
    Key::new(&format!("k{number}")).expect("a letter and a number are a key")
}
