//! Holders of short leases, two at each node, that renew in time if the nodes let them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use ringfence_harness::HttpConnection;
use ringfence_wire::LeaseId;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::background::{Background, Ready, Stop};
use crate::calls::{Times, acquire};

const TTL: Duration = Duration::from_secs(3);
const EVERY: Duration = Duration::from_millis(500);
const AT_EACH: usize = 2;

/// The results of all renewals.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Renewed {
    pub(super) renewals: u64,
    /// Refused, or not answered before the lease could expire.
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

/// Starts the holders, on a thread of their own: a stranger that keeps this thread busy must not make renewals look late.
/// Returns when all hold their leases.
pub(super) async fn start(nodes: Vec<SocketAddr>) -> Result<Background<Renewed>> {
    let work = async move |ready: Ready, stop: Stop| {
        let mut holders = JoinSet::new();
        for (number, node) in nodes.iter().flat_map(|node| [*node; AT_EACH]).enumerate() {
            let (lease, times) = (LeaseId::random(), Times { ttl_ms: TTL.as_millis() as u64, wait_ms: 0 });
            let mut connection = HttpConnection::open(node).await?;
            let acquired = Instant::now();
            acquire(&mut connection, lease, &[format!("holders/{number}")], times).await?;
            holders.spawn(hold(node, lease, acquired + TTL, stop.clone()));
        }
        ready.send();
        let mut renewed = Renewed::default();
        while let Some(one) = holders.join_next().await {
            let one = one?;
            renewed.renewals += one.renewals;
            renewed.late += one.late;
            renewed.longest_ms = renewed.longest_ms.max(one.longest_ms);
        }
        Ok(renewed)
    };
    Background::start(work).await.context("holders")
}

/// Renews until it is stopped or the lease, which `ends` then at the earliest, is lost. Reconnects after a failure, as a
/// client would.
async fn hold(node: SocketAddr, lease: LeaseId, mut ends: Instant, mut stop: Stop) -> Renewed {
    let path = format!("/v1/leases/{lease}/renew");
    let (mut renewed, mut due, mut connection) = (Renewed::default(), Instant::now(), None);
    while !stop.is_requested() {
        tokio::select! {
            () = sleep_until(due) => {}
            () = stop.requested() => return renewed,
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

async fn renew(
    connection: &mut Option<HttpConnection>,
    node: SocketAddr,
    path: &str,
) -> std::io::Result<u16> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(HttpConnection::open(node).await?),
    };
    Ok(connection.call("POST", path, "").await?.status)
}
