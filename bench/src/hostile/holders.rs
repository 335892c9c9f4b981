//! Holders of short leases, two at each node, who renew in time if they are let.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ringfence_wire::LeaseId;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::calls::{Wish, acquire};
use crate::http::Connection;

const TTL: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(500);
const AT_EACH: usize = 2;

/// A thread of its own: what a stranger costs this process must not look like a late answer.
pub(super) struct Holders {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<Renewed>>,
}

/// What became of the renewals.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Renewed {
    pub(super) renewals: u64,
    /// Those that were refused, or not answered before the lease could end.
    pub(super) late: u64,
    /// From due to answered.
    pub(super) longest_ms: f64,
}

impl Renewed {
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self { renewals: 0, .. } => Some("nothing was renewed".to_owned()),
            Self { late: 0, .. } => None,
            Self { late, .. } => Some(format!("{late} renewals were late")),
        }
    }
}

impl Holders {
    /// Returns when all hold their leases.
    pub(super) async fn start(nodes: impl Iterator<Item = SocketAddr>) -> Result<Self> {
        let nodes: Vec<SocketAddr> = nodes.collect();
        let (stop, stopped) = watch::channel(false);
        let (ready, all_hold) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut holders = JoinSet::new();
                for (number, node) in nodes.iter().flat_map(|node| [*node; AT_EACH]).enumerate() {
                    let lease = LeaseId::random();
                    let wish = Wish { ttl_ms: TTL.as_millis() as u64, wait_ms: 0 };
                    let mut connection = Connection::open(node).await?;
                    let sent = Instant::now();
                    acquire(&mut connection, lease, &[format!("holders/{number}")], wish).await?;
                    holders.spawn(hold(node, lease, sent, stopped.clone()));
                }
                // The receiver waits below, unless it was dropped with its runtime.
                let _ = ready.send(());
                let mut renewed = Renewed::default();
                while let Some(one) = holders.join_next().await {
                    let one = one?;
                    renewed.renewals += one.renewals;
                    renewed.late += one.late;
                    renewed.longest_ms = renewed.longest_ms.max(one.longest_ms);
                }
                Ok(renewed)
            })
        });
        match all_hold.await {
            Ok(()) => Ok(Self { stop, thread }),
            Err(_) => match join(thread) {
                Err(error) => Err(error).context("holders"),
                Ok(_) => Err(anyhow!("the holders ended at once")),
            },
        }
    }

    pub(super) fn stop(self) -> Result<Renewed> {
        self.stop.send_replace(true);
        join(self.thread).context("holders")
    }
}

fn join(thread: JoinHandle<Result<Renewed>>) -> Result<Renewed> {
    thread.join().map_err(|_| anyhow!("the thread of the holders panicked"))?
}

/// Renews until it is stopped or the lease is lost. A connection that fails is made again, as a client would.
async fn hold(
    node: SocketAddr,
    lease: LeaseId,
    acquired: Instant,
    mut stop: watch::Receiver<bool>,
) -> Renewed {
    let path = format!("/v1/leases/{lease}/renew");
    let (mut renewed, mut ends, mut due) = (Renewed::default(), acquired + TTL, Instant::now());
    let mut connection = None;
    while !*stop.borrow() {
        tokio::select! {
            () = sleep_until(due) => {}
            _ = stop.changed() => return renewed,
        }
        renewed.renewals += 1;
        let is_kept = loop {
            let sent = Instant::now();
            if sent >= ends {
                break false;
            }
            match timeout(ends - sent, renew(&mut connection, node, &path)).await {
                Ok(Ok(200)) => {
                    ends = sent + TTL;
                    break true;
                }
                Ok(Ok(status)) if status < 500 => break false,
                _ => {
                    connection = None;
                    sleep_until((sent + EVERY / 5).min(ends)).await;
                }
            }
        };
        renewed.longest_ms = renewed.longest_ms.max(due.elapsed().as_secs_f64() * 1e3);
        if !is_kept {
            renewed.late += 1;
            return renewed;
        }
        due = (due + EVERY).max(Instant::now());
    }
    renewed
}

async fn renew(connection: &mut Option<Connection>, node: SocketAddr, path: &str) -> std::io::Result<u16> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(node).await?),
    };
    Ok(connection.call("POST", path, "").await?.status)
}
