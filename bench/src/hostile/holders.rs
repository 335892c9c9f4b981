//! Holders of short leases, two at each node, that renew in time if the nodes let them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use ringfence_harness::HttpConnection;
use ringfence_wire::LeaseId;
use serde::Serialize;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::background::{Background, Ready, Stop};
use crate::calls::{Times, acquire};

const TTL: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(100);
const AT_EACH: usize = 2;
/// The address of the holders' host: not that of the stranger.
const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The results of all renewals.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Renewed {
    pub(super) renewals: u64,
    /// Refused, or not answered before the lease could expire.
    pub(super) late: u64,
    /// Answered with 504: perhaps done.
    pub(super) unknown: u64,
    /// From due to answered.
    pub(super) longest_ms: f64,
    /// 99 % took no longer.
    pub(super) p99_ms: f64,
}

impl Renewed {
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self { renewals: 0, .. } => Some("nothing was renewed".to_owned()),
            Self { late: 0, unknown: 0, .. } => None,
            Self { late, unknown, .. } => {
                Some(format!("{late} renewals were late, and {unknown} perhaps not done"))
            }
        }
    }
}

/// Starts the holders, on a thread of their own: a stranger that keeps this thread busy must not make renewals look late.
/// Returns when all hold their leases.
pub(super) async fn start(nodes: Vec<SocketAddr>) -> Result<Background<Renewed>> {
    let work = async move |ready: Ready, stop: Stop| {
        let mut holders = JoinSet::new();
        for (number, node) in nodes.iter().flat_map(|node| [*node; AT_EACH]).enumerate() {
            let (lease, times) = (LeaseId::random(), Times { ttl_ms: TTL.as_millis() as u64, wait_ms: 0 });
            let mut connection = open(node).await?;
            let acquired = Instant::now();
            acquire(&mut connection, lease, &[format!("holders/{number}")], times).await?;
            holders.spawn(hold(node, lease, acquired + TTL, stop.clone()));
        }
        ready.send();
        let (mut late, mut unknown, mut took_ms) = (0, 0, Vec::new());
        while let Some(one) = holders.join_next().await {
            let held = one?;
            late += u64::from(held.is_late);
            unknown += held.unknown;
            took_ms.extend(held.took_ms);
        }
        took_ms.sort_by(f64::total_cmp);
        let at = |part: f64| took_ms.get((took_ms.len() as f64 * part) as usize).or(took_ms.last()).copied();
        let (p99_ms, longest_ms) = (at(0.99).unwrap_or(0.0), at(1.0).unwrap_or(0.0));
        Ok(Renewed { renewals: took_ms.len() as u64, late, unknown, longest_ms, p99_ms })
    };
    Background::start(work).await.context("holders")
}

/// What became of one lease.
#[derive(Default)]
struct Held {
    took_ms: Vec<f64>,
    is_late: bool,
    unknown: u64,
}

/// Renews until it is stopped or the lease, which `ends` then at the earliest, is lost. Reconnects after a failure, as a
/// client would.
async fn hold(node: SocketAddr, lease: LeaseId, mut ends: Instant, mut stop: Stop) -> Held {
    let path = format!("/v1/leases/{lease}/renew");
    let (mut held, mut due, mut connection) = (Held::default(), Instant::now(), None);
    while !stop.is_requested() {
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.requested() => return held,
        }
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
                answer => {
                    held.unknown += u64::from(matches!(answer, Ok(Ok(504))));
                    connection = None;
                    sleep_until((sent + EVERY / 5).min(ends)).await;
                }
            }
        };
        held.took_ms.push(due.elapsed().as_secs_f64() * 1e3);
        if !is_kept {
            held.is_late = true;
            return held;
        }
        due = (due + EVERY).max(Instant::now());
    }
    held
}

async fn open(node: SocketAddr) -> io::Result<HttpConnection> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((HOST, 0).into())?;
    let stream = socket.connect(node).await?;
    stream.set_nodelay(true)?;
    Ok(HttpConnection::over(stream, node, None))
}

async fn renew(connection: &mut Option<HttpConnection>, node: SocketAddr, path: &str) -> io::Result<u16> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(open(node).await?),
    };
    Ok(connection.call("POST", path, "").await?.status)
}
