//! A TCP proxy in front of a server, or between two: it can lose an answer, let nothing pass, refuse, and change its target
//! as a virtual address does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy. It ends, with its connections, when this is dropped.
#[derive(Debug)]
pub(crate) struct Front {
    address: SocketAddr,
    way: watch::Sender<Way>,
    lost: Arc<AtomicU64>,
    _serving: JoinSet<()>,
}

/// Where connections go, and what passes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    target: SocketAddr,
    /// Nothing passes either way; connections stay open.
    holds: bool,
    /// Connections are closed, and new ones too.
    refuses: bool,
    /// So many answers are to be lost, each with its connection.
    to_lose: u64,
    /// Connections made under an earlier number are closed.
    generation: u64,
}

impl Front {
    /// A proxy to `target`.
    pub(crate) async fn open(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let way = Way { target, holds: false, refuses: false, to_lose: 0, generation: 0 };
        let (way, lost, mut serving) = (watch::Sender::new(way), Arc::default(), JoinSet::new());
        let address = listener.local_addr()?;
        serving.spawn(serve(listener, way.clone(), Arc::clone(&lost)));
        Ok(Self { address, way, lost, _serving: serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delivers the next request, and discards its answer and whatever else comes over that connection.
    pub(crate) fn lose_next_answer(&self) {
        self.way.send_modify(|way| way.to_lose += 1);
    }

    /// How many answers were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Lets nothing pass from now on.
    pub(crate) fn hold(&self) {
        self.way.send_modify(|way| way.holds = true);
    }

    /// Closes all connections; refuses new ones until [`Front::lead_to`].
    pub(crate) fn refuse(&self) {
        self.way.send_modify(|way| {
            way.refuses = true;
            way.generation += 1;
        });
    }

    /// Closes all connections; new ones go to `target`.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.way.send_modify(|way| {
            *way = Way { target, holds: false, refuses: false, to_lose: 0, generation: way.generation + 1 };
        });
    }
}

async fn serve(listener: TcpListener, way: watch::Sender<Way>, lost: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((caller, _)) = accepted {
                connections.spawn(relay(caller, way.clone(), Arc::clone(&lost)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// An end of a connection, or an error, is passed on by closing.
async fn relay(caller: TcpStream, way: watch::Sender<Way>, lost: Arc<AtomicU64>) -> std::io::Result<()> {
    let Way { target, refuses, generation, .. } = *way.borrow();
    if refuses {
        return Ok(());
    }
    let callee = TcpStream::connect(target).await?;
    caller.set_nodelay(true)?;
    callee.set_nodelay(true)?;
    let (from_caller, to_caller) = caller.into_split();
    let (from_callee, to_callee) = callee.into_split();
    let mut changes = way.subscribe();
    tokio::select! {
        there = pump(from_caller, to_callee, &way, None) => there,
        back = pump(from_callee, to_caller, &way, Some(&lost)) => back,
        _ = changes.wait_for(|way| way.generation != generation) => Ok(()),
    }
}

/// `lost` is given for answers.
async fn pump(
    mut source: OwnedReadHalf,
    mut sink: OwnedWriteHalf,
    way: &watch::Sender<Way>,
    lost: Option<&AtomicU64>,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    let mut changes = way.subscribe();
    let mut discards = false;
    loop {
        let length = source.read(&mut bytes).await?;
        // Without the sender all is over.
        let _ = changes.wait_for(|way| !way.holds).await;
        if length == 0 {
            return sink.shutdown().await;
        }
        if let Some(lost) = lost {
            way.send_if_modified(|way| {
                let loses = way.to_lose > 0;
                if loses {
                    way.to_lose -= 1;
                    discards = true;
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                loses
            });
        }
        if !discards {
            sink.write_all(&bytes[..length]).await?;
        }
    }
}
