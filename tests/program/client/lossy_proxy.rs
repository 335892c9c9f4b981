//! A proxy between client and node that loses responses, or delays requests.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence_harness::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

/// Forwards connections to a node. On the first ones it closes the connection instead of responding.
pub(crate) struct LossyProxy {
    proxy: Proxy,
    losses: Arc<Losses>,
}

/// What its connections share.
struct Losses {
    left: AtomicUsize,
    kept: Mutex<Vec<Kept>>,
    away: Mutex<Away>,
}

/// A request, and the connection to the node to send it on.
type Kept = (TcpStream, Vec<u8>);

/// How long clients were without a connection after it closed one, at most.
#[derive(Default)]
struct Away {
    since: Option<Instant>,
    longest: Duration,
}

/// When it closes the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When the node has responded.
    Answered,
    /// When the request was sent to the node.
    Sent,
    /// Before that: the test [delivers](LossyProxy::deliver) the request later.
    Kept,
}

impl LossyProxy {
    /// Loses the responses on the first `count` connections.
    pub(crate) async fn start(node: SocketAddr, count: usize, when: When) -> Self {
        let losses = Losses { left: AtomicUsize::new(count), kept: Mutex::default(), away: Mutex::default() };
        let losses = Arc::new(losses);
        let of_connections = Arc::clone(&losses);
        let serve = move |client| serve(client, node, when, Arc::clone(&of_connections));
        Self { proxy: Proxy::open(serve).await.unwrap(), losses }
    }

    pub(crate) fn url(&self) -> String {
        self.proxy.url()
    }

    /// Delivers the requests that were kept. Returns their connections.
    pub(crate) async fn deliver(&self) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        let kept = std::mem::take(&mut *self.losses.kept.lock().unwrap());
        for (mut node, request) in kept {
            node.write_all(&request).await.unwrap();
            connections.push(node);
        }
        connections
    }

    /// The longest time that a client took to connect again.
    pub(crate) fn longest_away(&self) -> Duration {
        self.losses.away.lock().unwrap().longest
    }

    /// How many responses it will still lose.
    pub(crate) fn left(&self) -> usize {
        self.losses.left.load(Ordering::SeqCst)
    }
}

async fn serve(mut client: TcpStream, node: SocketAddr, when: When, losses: Arc<Losses>) -> io::Result<()> {
    losses.away.lock().unwrap().ends();
    let mut node = TcpStream::connect(node).await?;
    let less = |left: usize| left.checked_sub(1);
    if losses.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
        return copy_bidirectional(&mut client, &mut node).await.map(drop);
    }
    let mut piece = [0; 4096];
    let length = client.read(&mut piece).await?;
    if when == When::Kept {
        losses.kept.lock().unwrap().push((node, piece[..length].to_vec()));
        return Ok(());
    }
    node.write_all(&piece[..length]).await?;
    if when == When::Answered {
        assert!(node.read(&mut piece).await? > 0);
    }
    losses.away.lock().unwrap().since = Some(Instant::now());
    Ok(())
}

impl Away {
    fn ends(&mut self) {
        let away = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.longest = self.longest.max(away);
    }
}
