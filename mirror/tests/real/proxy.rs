//! A proxy to Redis that delays or holds back bytes.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Forwards bytes in both directions. Bytes from a client arrive even after it has disconnected.
pub(crate) struct Proxy {
    address: SocketAddr,
    held: watch::Sender<bool>,
    received: watch::Receiver<usize>,
    delivered: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to `to` with a `delay` in each direction.
    pub(crate) async fn start(to: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, hold) = watch::channel(false);
        let (count_received, received) = watch::channel(0);
        let (count_delivered, delivered) = watch::channel(0);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(to).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(forward(
                    from_client,
                    to_server,
                    delay,
                    hold.clone(),
                    Some((count_received.clone(), count_delivered.clone())),
                ));
                tokio::spawn(forward(from_server, to_client, delay, hold.clone(), None));
            }
        });
        Self { address, held, received, delivered, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
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
        *self.received.borrow()
    }

    /// Bytes delivered to the server.
    pub(crate) fn delivered(&self) -> usize {
        *self.delivered.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    mut hold: watch::Receiver<bool>,
    count: Option<(watch::Sender<usize>, watch::Sender<usize>)>,
) {
    let (sender, mut queue) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let (received, delivered) = count.unzip();
    let reader = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            if let Some(received) = &received {
                received.send_modify(|count| *count += len);
            }
            if sender.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    };
    let writer = async move {
        while let Some((at, bytes)) = queue.recv().await {
            sleep_until(at).await;
            if hold.wait_for(|held| !held).await.is_err() || to.write_all(&bytes).await.is_err() {
                break;
            }
            if let Some(delivered) = &delivered {
                delivered.send_modify(|count| *count += bytes.len());
            }
        }
    };
    tokio::join!(reader, writer);
}
