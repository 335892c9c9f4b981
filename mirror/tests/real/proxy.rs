//! A way to Redis that is slow, or holds back what it was given.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Passes bytes on in both directions. What it was given arrives, though the giver has gone.
pub(crate) struct Proxy {
    address: SocketAddr,
    held: watch::Sender<bool>,
    given: watch::Receiver<usize>,
    delivered: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A way to `to` that takes `delay` in each direction.
    pub(crate) async fn start(to: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, hold) = watch::channel(false);
        let (count_given, given) = watch::channel(0);
        let (count_delivered, delivered) = watch::channel(0);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(to).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(
                    from_client,
                    to_server,
                    delay,
                    hold.clone(),
                    Some((count_given.clone(), count_delivered.clone())),
                ));
                tokio::spawn(pass(from_server, to_client, delay, hold.clone(), None));
            }
        });
        Self { address, held, given, delivered, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Holds back whatever it is given from now on.
    pub(crate) fn hold(&self) {
        self.held.send_replace(true);
    }

    pub(crate) fn let_go(&self) {
        self.held.send_replace(false);
    }

    /// How many bytes clients have given it.
    pub(crate) fn given(&self) -> usize {
        *self.given.borrow()
    }

    /// How many of them it has passed on.
    pub(crate) fn delivered(&self) -> usize {
        *self.delivered.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    mut hold: watch::Receiver<bool>,
    count: Option<(watch::Sender<usize>, watch::Sender<usize>)>,
) {
    let (sender, mut queue) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let (given, delivered) = count.unzip();
    let reader = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer).await {
            if let Some(given) = &given {
                given.send_modify(|count| *count += len);
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
