//! A proxy to Redis that delays or holds back bytes.

use std::net::SocketAddr;
use std::time::Duration;

use ringfence_harness::{Delivery, Direction, Proxy, splice};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Forwards bytes in both directions. Bytes from a client arrive even after it has disconnected.
pub(crate) struct SlowProxy {
    proxy: Proxy,
    held: watch::Sender<bool>,
    there: Counts,
}

/// Bytes, by where they are.
#[derive(Clone, Default)]
struct Counts {
    received: watch::Sender<usize>,
    delivered: watch::Sender<usize>,
}

impl SlowProxy {
    /// A proxy to `to` with a `delay` in each direction.
    pub(crate) async fn start(to: SocketAddr, delay: Duration) -> Self {
        let (held, there) = (watch::Sender::new(false), Counts::default());
        let way = Way { delay, held: held.clone(), counts: there.clone() };
        let serve = move |client| {
            let way = way.clone();
            let back = Way { counts: Counts::default(), ..way.clone() };
            async move { splice(client, TcpStream::connect(to).await?, way, back).await }
        };
        Self { proxy: Proxy::open(serve).await.unwrap(), held, there }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    /// Holds back all bytes from now on.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn release(&self) {
        self.held.send_replace(false);
    }

    /// Bytes received from clients.
    pub(crate) fn received(&self) -> usize {
        *self.there.received.borrow()
    }

    /// Bytes delivered to the server.
    pub(crate) fn delivered(&self) -> usize {
        *self.there.delivered.borrow()
    }
}

#[derive(Clone)]
struct Way {
    delay: Duration,
    held: watch::Sender<bool>,
    counts: Counts,
}

impl Direction for Way {
    async fn enters(&self, bytes: &[u8]) -> Instant {
        self.counts.received.send_modify(|count| *count += bytes.len());
        Instant::now() + self.delay
    }

    async fn arrives(&self, bytes: &[u8]) -> Delivery {
        let _ = self.held.subscribe().wait_for(|held| !held).await;
        self.counts.delivered.send_modify(|count| *count += bytes.len());
        Delivery::Pass
    }
}
