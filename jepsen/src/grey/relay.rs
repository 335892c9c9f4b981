//! A TCP relay on loopback whose way can become long or narrow.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How much is read at once, and how many of these a connection has on their way in each direction.
const CHUNK: usize = 16 << 10;
const ON_THEIR_WAY: usize = 256;
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
    _serving: JoinSet<()>,
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
        let listener = socket.listen(BACKLOG)?;
        let (shape, counts) = (watch::Sender::new(Shape::default()), Arc::new(Counts::default()));
        let way = Way { shape: shape.subscribe(), counts: Arc::clone(&counts), free_at: None };
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, callee, way));
        Ok(Self { shape, counts, _serving: serving })
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
    shape: watch::Receiver<Shape>,
    counts: Arc<Counts>,
    free_at: Option<Arc<Mutex<Instant>>>,
}

async fn serve(listener: TcpListener, callee: SocketAddr, back: Way) {
    let there = Way { free_at: Some(Arc::new(Mutex::new(Instant::now()))), ..back.clone() };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((caller, _)) = accepted {
                back.counts.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(relay(caller, callee, there.clone(), back.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(caller: TcpStream, callee: SocketAddr, there: Way, back: Way) -> io::Result<()> {
    let callee = TcpStream::connect(callee).await?;
    caller.set_nodelay(true)?;
    callee.set_nodelay(true)?;
    let (caller_reads, caller_writes) = caller.into_split();
    let (callee_reads, callee_writes) = callee.into_split();
    tokio::try_join!(there.carry(caller_reads, callee_writes), back.carry(callee_reads, caller_writes))?;
    Ok(())
}

impl Way {
    /// What is read later is on its way while what was read before still is.
    async fn carry(mut self, mut source: OwnedReadHalf, mut sink: OwnedWriteHalf) -> io::Result<()> {
        let (sender, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THEIR_WAY);
        let counts = Arc::clone(&self.counts);
        let reads = async move {
            loop {
                let mut bytes = vec![0; CHUNK];
                let length = source.read(&mut bytes).await?;
                bytes.truncate(length);
                self.takes(length).await;
                let due = Instant::now() + self.shape.borrow().delay;
                if sender.send((due, bytes)).await.is_err() || length == 0 {
                    return Ok::<_, io::Error>(());
                }
            }
        };
        let writes = async move {
            while let Some((due, bytes)) = arriving.recv().await {
                sleep_until(due).await;
                counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                match bytes.is_empty() {
                    true => return sink.shutdown().await,
                    false => sink.write_all(&bytes).await?,
                }
            }
            Ok(())
        };
        tokio::try_join!(reads, writes)?;
        Ok(())
    }

    /// Waits as long as this many bytes take on a narrow way.
    async fn takes(&mut self, bytes: usize) {
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

/// Addresses that neither accept nor refuse: their queue of connections is full, so the system drops what comes.
#[derive(Debug)]
pub(super) struct BlackHoles {
    _full: Vec<(TcpListener, Vec<TcpStream>)>,
}

impl BlackHoles {
    pub(super) async fn dig(addresses: impl IntoIterator<Item = SocketAddr>) -> anyhow::Result<Self> {
        let mut full = Vec::new();
        for address in addresses {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(1)?;
            let (mut queue, patience) = (Vec::new(), Duration::from_millis(300));
            while let Ok(connected) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
                queue.push(connected?);
                anyhow::ensure!(queue.len() < 100, "{address} accepts all connections");
            }
            full.push((listener, queue));
        }
        Ok(Self { _full: full })
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn a_black_hole_neither_accepts_nor_refuses() {
        let address = free().await;
        let _holes = BlackHoles::dig([address]).await.unwrap();
        let connected = tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await;
        assert!(connected.is_err(), "{connected:?}");
    }
}
