//! A TCP proxy: connections to its address go where `serve` leads them, and bytes pass as their [`Direction`] says.

use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How much is read at once, and how many of these a connection has on their way in each direction.
const CHUNK: usize = 16 << 10;
const ON_THEIR_WAY: usize = 256;
/// Until the next attempt to accept, if the system has no descriptor to give.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener. It ends, with its connections, when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Proxy {
    /// One on a free port of loopback.
    ///
    /// # Errors
    ///
    /// If the system has none.
    pub async fn open<F: Serving>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> io::Result<Self> {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, serve)
    }

    /// One with this listener.
    ///
    /// # Errors
    ///
    /// If it has no address.
    pub fn on<F: Serving>(
        listener: TcpListener,
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((caller, _)) => _ = connections.spawn(serve(caller)),
                        Err(_) => sleep(PAUSE).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, _serving: serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is, for HTTP.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// One connection, until it ends.
pub trait Serving: Future<Output = io::Result<()>> + Send + 'static {}

impl<T: Future<Output = io::Result<()>> + Send + 'static> Serving for T {}

/// What becomes of the bytes of one direction of a connection. No bytes are its end.
pub trait Direction: Send + Sync {
    /// When what was just read arrives. Until this is known, no more is read.
    fn enters(&self, _bytes: &[u8]) -> impl Future<Output = Instant> + Send {
        ready(Instant::now())
    }

    /// Waits until it may arrive. What was read later waits behind it.
    fn arrives(&self, bytes: &[u8]) -> impl Future<Output = Delivery> + Send;
}

/// Whether bytes are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// They are.
    Pass,
    /// They are lost. The connection goes on.
    Lost,
    /// They are lost, and the connection ends for both sides.
    Closed,
}

/// Passes bytes on until both directions have ended. An error of a side is its end; what it sent before still arrives.
///
/// # Errors
///
/// [`Delivery::Closed`], or a connection that was gone already.
pub async fn splice(
    caller: TcpStream,
    callee: TcpStream,
    there: impl Direction,
    back: impl Direction,
) -> io::Result<()> {
    caller.set_nodelay(true)?;
    callee.set_nodelay(true)?;
    let (caller_reads, caller_writes) = caller.into_split();
    let (callee_reads, callee_writes) = callee.into_split();
    tokio::try_join!(carry(caller_reads, callee_writes, &there), carry(callee_reads, caller_writes, &back))?;
    Ok(())
}

/// What is read later is on its way while what was read before still is.
async fn carry(mut source: OwnedReadHalf, mut sink: OwnedWriteHalf, way: &impl Direction) -> io::Result<()> {
    let (sender, mut arriving) = mpsc::channel(ON_THEIR_WAY);
    let reads = async move {
        loop {
            let mut bytes = vec![0; CHUNK];
            let length = source.read(&mut bytes).await.unwrap_or(0);
            bytes.truncate(length);
            let due = way.enters(&bytes).await;
            if sender.send((due, bytes)).await.is_err() || length == 0 {
                return io::Result::Ok(());
            }
        }
    };
    let writes = async move {
        while let Some((due, bytes)) = arriving.recv().await {
            // A timer takes a millisecond also for what is due.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            match way.arrives(&bytes).await {
                Delivery::Lost => {}
                Delivery::Closed => return Err(io::ErrorKind::ConnectionAborted.into()),
                Delivery::Pass if bytes.is_empty() => break,
                // The reader of this side learns why.
                Delivery::Pass if sink.write_all(&bytes).await.is_err() => break,
                Delivery::Pass => {}
            }
        }
        let _ = sink.shutdown().await;
        Ok(())
    };
    tokio::try_join!(reads, writes)?;
    Ok(())
}
