//! A network in memory. It delays each message, and can hold what goes one way on one channel of a link, what is large, and
//! what exceeds a bandwidth.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{pending, ready};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_raft::{Connection, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// The channels by their number in a hello.
pub const CHANNELS: std::ops::RangeInclusive<u8> = 0..=6;
pub const FOUNDING: u8 = 0;
const VOTES: u8 = 1;
pub const FORWARDS: u8 = 2;
pub const APPENDS: u8 = 3;

const BUFFER: usize = 64 << 10;
/// The most messages of a connection that are under way in one direction.
const UNDER_WAY: usize = 16;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the caller.
    There,
    Back,
}

/// Messages of the connections that the first opens to the second, on this channel.
type Link = (String, String, u8, Way);
type Held = BTreeSet<Link>;

/// What one node sends to another on [`APPENDS`].
#[derive(Clone, Copy, Debug)]
struct Narrow {
    /// Larger messages wait, and all after them on the same connection.
    most_bytes: usize,
    bytes_per_second: f64,
}

/// Connects nodes by their addresses. Clones share it.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    listeners: Mutex<BTreeMap<String, mpsc::UnboundedSender<Connection>>>,
    held: watch::Sender<Held>,
    /// By the node that sends and the node that receives.
    narrow: watch::Sender<BTreeMap<(String, String), Narrow>>,
    /// How many messages were delivered, without the hellos.
    delivered: Mutex<BTreeMap<Link, u64>>,
    /// What a message takes, from the least to the most.
    latency: Range<Duration>,
    random: AtomicU64,
}

impl Network {
    /// A network where a message takes at most `latency`.
    pub fn new(latency: Duration) -> Self {
        Self::with(Duration::ZERO..latency)
    }

    /// A network where each message takes just `latency`.
    pub fn far(latency: Duration) -> Self {
        Self::with(latency..latency)
    }

    fn with(latency: Range<Duration>) -> Self {
        Self(Arc::new(Inner {
            listeners: Mutex::default(),
            held: watch::Sender::new(Held::new()),
            narrow: watch::Sender::default(),
            delivered: Mutex::default(),
            latency,
            random: AtomicU64::new(1),
        }))
    }

    /// The port of a node, which listens at `address`.
    pub fn port(&self, address: &str) -> Arc<dyn Transport> {
        let (listener, accepted) = mpsc::unbounded_channel();
        self.0.listeners.lock().unwrap().insert(address.to_owned(), listener);
        Arc::new(Port {
            network: self.clone(),
            address: address.to_owned(),
            accepted: tokio::sync::Mutex::new(accepted),
        })
    }

    /// How many votes and confirmations `from` has asked of `to`.
    pub fn votes_asked(&self, from: &str, to: &str) -> u64 {
        self.delivered(from, to, VOTES, Way::There)
    }

    /// How many messages were delivered there, without the hellos.
    pub fn delivered(&self, from: &str, to: &str, channel: u8, way: Way) -> u64 {
        let link = (from.to_owned(), to.to_owned(), channel, way);
        self.0.delivered.lock().unwrap().get(&link).copied().unwrap_or_default()
    }

    /// Messages on these channels of the connections that `from` opens to `to` wait from now on.
    pub fn hold(&self, from: &str, to: &str, channels: impl IntoIterator<Item = u8>, way: Way) {
        let link = |channel| (from.to_owned(), to.to_owned(), channel, way);
        self.0.held.send_modify(|held| held.extend(channels.into_iter().map(link)));
    }

    /// All messages on the connections that `from` opens to `to` wait from now on.
    pub fn cut(&self, from: &str, to: &str) {
        self.hold(from, to, CHANNELS, Way::There);
        self.hold(from, to, CHANNELS, Way::Back);
    }

    /// Delivers what was held there.
    pub fn release(&self, from: &str, to: &str, channel: u8, way: Way) {
        let link = (from.to_owned(), to.to_owned(), channel, way);
        self.0.held.send_if_modified(|held| held.remove(&link));
    }

    /// Messages of more than `most_bytes` with entries that `from` sends to `to` wait from now on.
    pub fn lose_large(&self, from: &str, to: &str, most_bytes: usize) {
        self.narrow(from, to, Narrow { most_bytes, bytes_per_second: f64::INFINITY });
    }

    /// Entries that `from` sends to `to` take as long as this bandwidth lets them.
    pub fn throttle(&self, from: &str, to: &str, bytes_per_second: f64) {
        self.narrow(from, to, Narrow { most_bytes: usize::MAX, bytes_per_second });
    }

    fn narrow(&self, from: &str, to: &str, narrow: Narrow) {
        self.0.narrow.send_modify(|all| _ = all.insert((from.to_owned(), to.to_owned()), narrow));
    }

    /// Delivers all that was held.
    pub fn heal(&self) {
        self.0.held.send_replace(Held::new());
        self.0.narrow.send_replace(BTreeMap::new());
    }

    pub fn connect(&self, from: &str, to: &str) -> io::Result<Connection> {
        let listener = self.0.listeners.lock().unwrap().get(to).cloned();
        let listener = listener.filter(|listener| !listener.is_closed());
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (caller, near) = duplex(BUFFER);
        let (far, callee) = duplex(BUFFER);
        let (network, link) = (self.clone(), (from.to_owned(), to.to_owned()));
        tokio::spawn(async move {
            // Either end may close at any time.
            let _ = network.relay(link, split(near), split(far), callee, listener).await;
        });
        Ok(connection(to, caller))
    }

    async fn relay(
        &self,
        (from, to): (String, String),
        (mut near, to_caller): (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>),
        (far, mut to_callee): (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>),
        callee: DuplexStream,
        listener: mpsc::UnboundedSender<Connection>,
    ) -> io::Result<()> {
        // The preface, and of the hello its head, its kind, the group and the channel.
        let mut first = [0; 10 + 8 + 1 + 1 + 1];
        near.read_exact(&mut first).await?;
        let channel = first[20];
        let link = |way| (from.clone(), to.clone(), channel, way);
        sleep(self.latency()).await;
        self.passes(&link(Way::There)).await;
        let _ = listener.send(connection(&from, callee));
        to_callee.write_all(&first).await?;
        let rest = u32::from_le_bytes(first[10..14].try_into().unwrap()) as usize - 3;
        copy(&mut near, &mut to_callee, rest).await?;
        let back = async {
            let mut far = far;
            let mut to_caller = to_caller;
            copy(&mut far, &mut to_caller, 10).await?;
            self.pump(far, to_caller, link(Way::Back)).await
        };
        let (there, back) = tokio::join!(self.pump(near, to_callee, link(Way::There)), back);
        there.and(back)
    }

    /// Passes messages on in order, each once its time has come.
    async fn pump(
        &self,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        link: Link,
    ) -> io::Result<()> {
        let (sent, mut queue) = mpsc::channel(UNDER_WAY);
        let read = async move {
            loop {
                let message = message(&mut from).await.ok();
                let is_end = message.is_none();
                let _ = sent.send((Instant::now() + self.latency(), message)).await;
                if is_end {
                    pending::<()>().await;
                }
            }
        };
        let write = async {
            while let Some((due, Some(message))) = queue.recv().await {
                sleep_until(due).await;
                self.passes(&link).await;
                if link.2 == APPENDS && link.3 == Way::There {
                    self.fits(&link, message.len()).await;
                }
                *self.0.delivered.lock().unwrap().entry(link.clone()).or_default() += 1;
                to.write_all(&message).await?;
            }
            to.shutdown().await
        };
        tokio::select! {
            written = write => written,
            () = read => unreachable!("it has no end"),
        }
    }

    async fn passes(&self, link: &Link) {
        let mut held = self.0.held.subscribe();
        held.wait_for(|held| !held.contains(link)).await.expect("the network lives as long as this");
    }

    /// Waits until a message of so many bytes may go there, and for as long as it takes.
    async fn fits(&self, (from, to, ..): &Link, bytes: usize) {
        let link = (from.clone(), to.clone());
        let mut narrow = self.0.narrow.subscribe();
        let passes =
            |all: &BTreeMap<_, Narrow>| all.get(&link).is_none_or(|narrow| bytes <= narrow.most_bytes);
        let narrow =
            narrow.wait_for(passes).await.expect("the network lives as long as this").get(&link).copied();
        if let Some(Narrow { bytes_per_second, .. }) = narrow {
            sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_second)).await;
        }
    }

    /// The same sequence in each run.
    fn latency(&self) -> Duration {
        let step = |random: u64| Some(random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        let random = self.0.random.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap();
        let Range { start, end } = self.0.latency;
        start + (end - start).mul_f64((random >> 40) as f64 / f64::from(1 << 24))
    }
}

struct Port {
    network: Network,
    address: String,
    accepted: tokio::sync::Mutex<mpsc::UnboundedReceiver<Connection>>,
}

impl Transport for Port {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(ready(self.network.connect(&self.address, address)))
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            let accepted = self.accepted.lock().await.recv().await;
            accepted.ok_or_else(|| io::Error::other("another listens at this address"))
        })
    }
}

fn connection(peer: &str, stream: DuplexStream) -> Connection {
    let (reader, writer) = split(stream);
    Connection {
        peer: peer.to_owned(),
        reader: Box::new(reader),
        writer: Box::new(writer),
        certificate: None,
    }
}

/// The next message, with its head.
async fn message(from: &mut ReadHalf<DuplexStream>) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 8];
    from.read_exact(&mut message).await?;
    let len = u32::from_le_bytes(message[..4].try_into().unwrap()) as usize;
    message.resize(8 + len, 0);
    from.read_exact(&mut message[8..]).await?;
    Ok(message)
}

async fn copy(
    from: &mut ReadHalf<DuplexStream>,
    to: &mut WriteHalf<DuplexStream>,
    bytes: usize,
) -> io::Result<()> {
    let mut copied = vec![0; bytes];
    from.read_exact(&mut copied).await?;
    to.write_all(&copied).await
}
