//! A TCP proxy in front of a server, or between two: it can lose an answer, deliver a request late, let nothing pass, refuse,
//! and change its target as a virtual address does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ringfence_harness::{Delivery, Direction, Proxy, splice};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A proxy. It ends, with its connections, when this is dropped.
#[derive(Debug)]
pub(crate) struct Front {
    proxy: Proxy,
    way: watch::Sender<Way>,
    traps: Traps,
}

/// What is to be caught, and was.
#[derive(Clone, Debug)]
struct Traps {
    /// Catches answers: each is lost, with whatever else comes over its connection.
    answers: Arc<Trap>,
    /// Catches requests: each is held up until it is delivered.
    requests: Arc<Trap>,
    /// How many requests were answered after they had been held up.
    answered_late: Arc<AtomicU64>,
}

/// Catches as much of what passes as it is told.
#[derive(Debug)]
pub(crate) struct Trap {
    is_prey: fn(&[u8]) -> bool,
    to_catch: AtomicU64,
    caught: AtomicU64,
}

impl Trap {
    /// A trap for that of which this is true.
    pub(crate) fn new(is_prey: fn(&[u8]) -> bool) -> Arc<Self> {
        Arc::new(Self { is_prey, to_catch: AtomicU64::new(0), caught: AtomicU64::new(0) })
    }

    fn set(&self) {
        self.to_catch.fetch_add(1, Ordering::Relaxed);
    }

    fn caught(&self) -> u64 {
        self.caught.load(Ordering::Relaxed)
    }

    fn catches(&self, bytes: &[u8]) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let catches = (self.is_prey)(bytes)
            && self.to_catch.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        self.caught.fetch_add(u64::from(catches), Ordering::Relaxed);
        catches
    }
}

/// Where connections go, and what passes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    target: SocketAddr,
    /// Nothing passes either way; connections stay open.
    holds: bool,
    /// Connections are closed, and new ones too.
    refuses: bool,
    /// Requests that were held up under an earlier number are delivered.
    deliveries: u64,
    /// Connections made under an earlier number are closed.
    generation: u64,
}

impl Front {
    /// A proxy to `target`.
    pub(crate) async fn open(target: SocketAddr) -> anyhow::Result<Self> {
        Self::open_with(target, Trap::new(|_| true)).await
    }

    /// A proxy to each of these, with a trap for answers that they share.
    pub(crate) async fn open_all(
        targets: impl IntoIterator<Item = SocketAddr>,
        answers: &Arc<Trap>,
    ) -> anyhow::Result<Vec<Self>> {
        let mut all = Vec::new();
        for target in targets {
            all.push(Self::open_with(target, Arc::clone(answers)).await?);
        }
        Ok(all)
    }
    async fn open_with(target: SocketAddr, answers: Arc<Trap>) -> anyhow::Result<Self> {
        let way = Way { target, holds: false, refuses: false, deliveries: 0, generation: 0 };
        let traps = Traps { answers, requests: Trap::new(|_| true), answered_late: Arc::default() };
        let way = watch::Sender::new(way);
        let (to, catches) = (way.clone(), traps.clone());
        let proxy = Proxy::open(move |caller| relay(caller, to.clone(), catches.clone())).await?;
        Ok(Self { proxy, way, traps })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Delivers the next request, and discards its answer and whatever else comes over that connection.
    pub(crate) fn lose_next_answer(&self) {
        self.traps.answers.set();
    }

    /// How many answers were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.traps.answers.caught()
    }

    /// Holds the next request up until [`Front::deliver`], even if its caller has gone.
    pub(crate) fn hold_next_request(&self) {
        self.traps.requests.set();
    }

    /// How many requests are held up, or delivered and not answered.
    pub(crate) fn held(&self) -> u64 {
        self.traps.requests.caught() - self.traps.answered_late.load(Ordering::Relaxed)
    }

    /// Delivers what was held up. The answer goes to nobody.
    pub(crate) fn deliver(&self) {
        self.way.send_modify(|way| way.deliveries += 1);
    }

    /// Lets nothing pass from now on.
    pub(crate) fn hold(&self) {
        self.way.send_modify(|way| way.holds = true);
    }

    /// Closes all connections; refuses new ones until [`Front::lead_to`].
    pub(crate) fn refuse(&self) {
        self.way.send_modify(|way| {
            way.refuses = true;
            way.generation += 1;
        });
    }

    /// Closes all connections; new ones go to `target`.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.way.send_modify(|way| {
            *way = Way { target, holds: false, refuses: false, generation: way.generation + 1, ..*way };
        });
    }
}

async fn relay(caller: TcpStream, way: watch::Sender<Way>, traps: Traps) -> std::io::Result<()> {
    let Way { target, refuses, generation, .. } = *way.borrow();
    if refuses {
        return Ok(());
    }
    let callee = TcpStream::connect(target).await?;
    // Whether a request was held up.
    let is_late = Arc::new(AtomicBool::new(false));
    let mut changes = way.subscribe();
    let requests = Requests { way: way.clone(), requests: traps.requests.clone(), is_late: is_late.clone() };
    let answers = Answers { way, traps, is_late, discards: AtomicBool::new(false) };
    tokio::select! {
        ended = splice(caller, callee, requests, answers) => ended,
        _ = changes.wait_for(|way| way.generation != generation) => Ok(()),
    }
}

async fn until(way: &watch::Sender<Way>, is_so: impl FnMut(&Way) -> bool) {
    // The sender is here.
    let _ = way.subscribe().wait_for(is_so).await;
}

/// What one caller says.
struct Requests {
    way: watch::Sender<Way>,
    requests: Arc<Trap>,
    is_late: Arc<AtomicBool>,
}

impl Direction for Requests {
    async fn arrives(&self, bytes: &[u8]) -> Delivery {
        until(&self.way, |way| !way.holds).await;
        if bytes.is_empty() && self.is_late.load(Ordering::Relaxed) {
            // A server drops the request of a caller that has gone: it is not to notice.
            std::future::pending::<()>().await;
        }
        if !bytes.is_empty() && self.requests.catches(bytes) {
            self.is_late.store(true, Ordering::Relaxed);
            let before = self.way.borrow().deliveries;
            until(&self.way, |way| way.deliveries > before).await;
        }
        Delivery::Pass
    }
}

/// What it is answered.
struct Answers {
    way: watch::Sender<Way>,
    traps: Traps,
    is_late: Arc<AtomicBool>,
    discards: AtomicBool,
}

impl Direction for Answers {
    async fn arrives(&self, bytes: &[u8]) -> Delivery {
        until(&self.way, |way| !way.holds).await;
        if bytes.is_empty() {
            return Delivery::Pass;
        }
        if self.is_late.load(Ordering::Relaxed) {
            self.traps.answered_late.fetch_add(1, Ordering::Relaxed);
            return Delivery::Closed;
        }
        self.discards.fetch_or(self.traps.answers.catches(bytes), Ordering::Relaxed);
        if self.discards.load(Ordering::Relaxed) { Delivery::Lost } else { Delivery::Pass }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfence_harness::until;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_that_was_held_up_arrives_when_its_caller_has_gone() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let front = Front::open(server.local_addr().unwrap()).await.unwrap();
        front.hold_next_request();
        let mut caller = TcpStream::connect(front.address()).await.unwrap();
        let (mut callee, _) = server.accept().await.unwrap();
        caller.write_all(b"late").await.unwrap();
        let soon = Duration::from_secs(30);
        until(soon, "it is held up", async || (front.held() == 1).then_some(())).await.unwrap();
        drop(caller);
        let mut bytes = [0; 4];
        let early = tokio::time::timeout(Duration::from_millis(50), callee.read(&mut bytes)).await;
        assert!(early.is_err(), "{early:?}");
        front.deliver();
        callee.read_exact(&mut bytes).await.unwrap();
        assert_eq!((&bytes, front.held()), (b"late", 1), "it is not answered");
        callee.write_all(b"done").await.unwrap();
        until(soon, "it is answered", async || (front.held() == 0).then_some(())).await.unwrap();
    }
}
