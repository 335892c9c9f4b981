//! A place between two nodes that can hold up what passes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The channels by their number in a hello.
pub const CHANNELS: std::ops::RangeInclusive<u8> = 0..=6;
const VOTES: u8 = 1;
pub const APPENDS: u8 = 3;

/// The way of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the one that connects.
    There,
    Back,
}

type Held = BTreeSet<(u8, Way)>;

/// Passes connections on to one node.
pub struct Proxy {
    pub address: String,
    held: watch::Sender<Held>,
    asked: Arc<AtomicU64>,
}

impl Proxy {
    pub async fn to(node: &str) -> Self {
        let (listener, address) = super::bind().await;
        let held = watch::Sender::new(Held::new());
        let asked = Arc::new(AtomicU64::new(0));
        tokio::spawn(accept(listener, node.to_owned(), held.clone(), Arc::clone(&asked)));
        Self { address, held, asked }
    }

    /// How often something was asked for on the channel of votes; less, where questions came together.
    pub fn votes_asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// What goes this way on these channels stays here.
    pub fn hold(&self, channels: impl IntoIterator<Item = u8>, way: Way) {
        self.held.send_modify(|held| held.extend(channels.into_iter().map(|channel| (channel, way))));
    }

    /// Everything stays here.
    pub fn cut(&self) {
        self.hold(CHANNELS, Way::There);
        self.hold(CHANNELS, Way::Back);
    }

    /// What was held up on this channel goes on its way.
    pub fn release(&self, channel: u8, way: Way) {
        self.held.send_modify(|held| held.retain(|kept| *kept != (channel, way)));
    }
}

async fn accept(listener: TcpListener, node: String, held: watch::Sender<Held>, asked: Arc<AtomicU64>) {
    while let Ok((caller, _)) = listener.accept().await {
        tokio::spawn(relay(caller, node.clone(), held.subscribe(), Arc::clone(&asked)));
    }
}

async fn relay(mut caller: TcpStream, node: String, held: watch::Receiver<Held>, asked: Arc<AtomicU64>) {
    caller.set_nodelay(true).unwrap();
    // The preface, and of the hello's frame: its head, its kind, the group and the channel.
    let mut first = [0; 10 + 8 + 1 + 1 + 1];
    if caller.read_exact(&mut first).await.is_err() {
        return;
    }
    let channel = first[20];
    passes(channel, Way::There, &mut held.clone()).await;
    let Ok(mut callee) = TcpStream::connect(node).await else { return };
    callee.set_nodelay(true).unwrap();
    if callee.write_all(&first).await.is_err() {
        return;
    }
    let count = || {
        asked.fetch_add(u64::from(channel == VOTES), Ordering::Relaxed);
    };
    let (from_caller, to_caller) = caller.into_split();
    let (from_callee, to_callee) = callee.into_split();
    tokio::join!(
        pump(from_caller, to_callee, (channel, Way::There), held.clone(), count),
        pump(from_callee, to_caller, (channel, Way::Back), held, || {}),
    );
}

async fn passes(channel: u8, way: Way, held: &mut watch::Receiver<Held>) {
    // The proxy is gone at the end of a test only.
    let _ = held.wait_for(|held| !held.contains(&(channel, way))).await;
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (channel, way): (u8, Way),
    mut held: watch::Receiver<Held>,
    count: impl Fn(),
) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        passes(channel, way, &mut held).await;
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            // The other side may have gone first.
            let _ = to.shutdown().await;
            return;
        }
        count();
    }
}
