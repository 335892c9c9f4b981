//! A proxy between client and node that loses responses, or delays requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Forwards connections to a node. On the first ones it closes the connection instead of responding.
pub(crate) struct LossyProxy {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
    kept: Arc<Mutex<Vec<Kept>>>,
    away: Arc<Mutex<Away>>,
    task: JoinHandle<()>,
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, left) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(count)));
        let (lose, kept, away) = (Arc::clone(&left), Arc::default(), Arc::<Mutex<Away>>::default());
        let (keeps, is_away) = (Arc::clone(&kept), Arc::clone(&away));
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                is_away.lock().unwrap().ends();
                let mut node = TcpStream::connect(node).await.unwrap();
                let (lose, keeps): (_, Arc<Mutex<Vec<_>>>) = (Arc::clone(&lose), Arc::clone(&keeps));
                let away = Arc::clone(&is_away);
                tokio::spawn(async move {
                    let less = |left: usize| left.checked_sub(1);
                    if lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                        let _ = copy_bidirectional(&mut client, &mut node).await;
                        return;
                    }
                    let mut piece = [0; 4096];
                    let length = client.read(&mut piece).await.unwrap();
                    if when == When::Kept {
                        keeps.lock().unwrap().push((node, piece[..length].to_vec()));
                        return;
                    }
                    node.write_all(&piece[..length]).await.unwrap();
                    if when == When::Answered {
                        assert!(node.read(&mut piece).await.unwrap() > 0);
                    }
                    away.lock().unwrap().since = Some(Instant::now());
                });
            }
        });
        Self { address, left, kept, away, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Delivers the requests that were kept. Returns their connections.
    pub(crate) async fn deliver(&self) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        let kept = self.kept.lock().unwrap().split_off(0);
        for (mut node, request) in kept {
            node.write_all(&request).await.unwrap();
            connections.push(node);
        }
        connections
    }

    /// The longest time that a client took to connect again.
    pub(crate) fn longest_away(&self) -> Duration {
        self.away.lock().unwrap().longest
    }

    /// How many responses it will still lose.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }
}

impl Away {
    fn ends(&mut self) {
        let away = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.longest = self.longest.max(away);
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
