//! Something between client and node that keeps answers for itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes connections on to a node; while there is something to swallow, it lets a request through and closes the
/// connection in place of the answer.
pub(crate) struct Swallower {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// When the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When the node has answered.
    Answered,
    /// As soon as the node has the request.
    Sent,
}

impl Swallower {
    /// Swallows the answers to the first `count` connections.
    pub(crate) async fn start(node: SocketAddr, count: usize, when: When) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, left) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(count)));
        let swallow = Arc::clone(&left);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut node = TcpStream::connect(node).await.unwrap();
                let swallow = Arc::clone(&swallow);
                tokio::spawn(async move {
                    let less = |left: usize| left.checked_sub(1);
                    if swallow.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
                        let _ = copy_bidirectional(&mut client, &mut node).await;
                        return;
                    }
                    let mut piece = [0; 4096];
                    let length = client.read(&mut piece).await.unwrap();
                    node.write_all(&piece[..length]).await.unwrap();
                    if when == When::Answered {
                        assert!(node.read(&mut piece).await.unwrap() > 0);
                    }
                });
            }
        });
        Self { address, left, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
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
