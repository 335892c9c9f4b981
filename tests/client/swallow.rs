//! Something between client and node that keeps answers for itself, or requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes connections on to a node; while there is something to swallow, it lets a request through, or keeps it, and closes
/// the connection in place of the answer.
pub(crate) struct Swallower {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
    kept: Arc<Mutex<Vec<Kept>>>,
    task: JoinHandle<()>,
}

/// A request, and the connection to the node on which it is to arrive.
type Kept = (TcpStream, Vec<u8>);

/// When the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When the node has answered.
    Answered,
    /// As soon as the node has the request.
    Sent,
    /// Before: the request arrives when the test [says so](Swallower::deliver).
    Kept,
}

impl Swallower {
    /// Swallows the answers to the first `count` connections.
    pub(crate) async fn start(node: SocketAddr, count: usize, when: When) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, left) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(count)));
        let (swallow, kept) = (Arc::clone(&left), Arc::default());
        let keeps = Arc::clone(&kept);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut node = TcpStream::connect(node).await.unwrap();
                let (swallow, keeps): (_, Arc<Mutex<Vec<_>>>) = (Arc::clone(&swallow), Arc::clone(&keeps));
                tokio::spawn(async move {
                    let less = |left: usize| left.checked_sub(1);
                    if swallow.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
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
                });
            }
        });
        Self { address, left, kept, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests that were kept arrive, on these connections.
    pub(crate) async fn deliver(&self) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        let kept = self.kept.lock().unwrap().split_off(0);
        for (mut node, request) in kept {
            node.write_all(&request).await.unwrap();
            connections.push(node);
        }
        connections
    }

    /// How many answers are to be swallowed yet.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }
}

impl Drop for Swallower {
    fn drop(&mut self) {
        self.task.abort();
    }
}
