//! A TCP relay on loopback whose way can become long or narrow.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_harness::{Delivery, Direction, Proxy, splice};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What the system buffers before the relay: little, so that a sender feels a slow way.
const BUFFER: u32 = 64 << 10;
const BACKLOG: u32 = 128;

/// What is wrong with the way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    /// How long bytes are on their way, in either direction.
    pub(super) delay: Duration,
    /// How many bytes a second of all connections together get to the callee.
    pub(super) bytes_per_s: Option<u64>,
}

/// A relay before one address. It ends, with its connections, when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    shape: watch::Sender<Shape>,
    counts: Arc<Counts>,
    _proxy: Proxy,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    bytes: AtomicU64,
}

impl Relay {
    /// Relays what comes to `listen` to `callee`.
    pub(super) fn start(listen: SocketAddr, callee: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.set_recv_buffer_size(BUFFER)?;
        socket.bind(listen)?;
        let (shape, counts) = (watch::Sender::new(Shape::default()), Arc::new(Counts::default()));
        let back = Way { shape: shape.clone(), counts: Arc::clone(&counts), free_at: None };
        let there = Way { free_at: Some(Arc::new(Mutex::new(Instant::now()))), ..back.clone() };
        let proxy = Proxy::on(socket.listen(BACKLOG)?, move |caller| {
            back.counts.connections.fetch_add(1, Ordering::Relaxed);
            let (there, back) = (there.clone(), back.clone());
            async move { splice(caller, TcpStream::connect(callee).await?, there, back).await }
        })?;
        Ok(Self { shape, counts, _proxy: proxy })
    }

    pub(super) fn shape(&self, shape: Shape) {
        self.shape.send_replace(shape);
    }

    /// How many connections were made so far.
    pub(super) fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// How many bytes were passed on so far, in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}

/// One direction. The one to the callee has a time from which on it is free again.
#[derive(Clone)]
struct Way {
    shape: watch::Sender<Shape>,
    counts: Arc<Counts>,
    free_at: Option<Arc<Mutex<Instant>>>,
}

impl Direction for Way {
    async fn enters(&self, bytes: &[u8]) -> Instant {
        self.takes(bytes.len()).await;
        Instant::now() + self.shape.borrow().delay
    }

    async fn arrives(&self, bytes: &[u8]) -> Delivery {
        self.counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Delivery::Pass
    }
}

impl Way {
    /// Waits as long as this many bytes take on a narrow way.
    async fn takes(&self, bytes: usize) {
        let (Some(free_at), Some(bytes_per_s)) = (&self.free_at, self.shape.borrow().bytes_per_s) else {
            return;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
        let until = {
            let mut free_at = free_at.lock().expect("no panic while it is locked");
            *free_at = Instant::now().max(*free_at) + takes;
            *free_at
        };
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    tokio::io::copy(&mut reads, &mut writes).await
                });
            }
        });
        address
    }

    async fn free() -> SocketAddr {
        TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap()
    }

    async fn there_and_back(stream: &mut TcpStream, bytes: usize) -> Duration {
        let began = Instant::now();
        let (mut reads, mut writes) = stream.split();
        let (sent, mut received) = (vec![7; bytes], vec![0; bytes]);
        tokio::try_join!(writes.write_all(&sent), reads.read_exact(&mut received)).unwrap();
        assert_eq!(sent, received);
        began.elapsed()
    }

    #[tokio::test]
    async fn bytes_take_as_long_as_the_shape_says() {
        let address = free().await;
        let relay = Relay::start(address, echo().await).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        there_and_back(&mut stream, 1_000).await;
        relay.shape(Shape { delay: Duration::from_millis(100), ..Shape::default() });
        assert!(there_and_back(&mut stream, 1).await >= Duration::from_millis(200));
        relay.shape(Shape { bytes_per_s: Some(1 << 20), ..Shape::default() });
        assert!(there_and_back(&mut stream, 512 << 10).await >= Duration::from_millis(400));
        assert_eq!(relay.connections(), 1);
    }
}
