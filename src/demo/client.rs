//! A client of the cluster, as the contract asks for one: it repeats a request until its answer is definite.
//!
//! 503 is certainly not done, 504 and a broken connection may have been done; for both the way out is the same request
//! again, at another node: it carries the same `lease_id`, so that a repeat is harmless. A client that is not waited
//! for heeds `Retry-After`; this one shows how soon the cluster goes on.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::body::Bytes;
use hyper::Method;
use ringfence_wire::{
    AcquireRequest, Claim, Grant, Holder, Key, LeaseId, Metadata, Mode, Problem, Ttl, Wait,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::exchange::{Answer, exchange};

/// How long one node may take beyond what the request waits for: it gives up by itself after 10 s.
const ONE_ANSWER: Duration = Duration::from_secs(12);
/// How long it may take until there is a definite answer.
const DEFINITE: Duration = Duration::from_secs(30);
/// How long to wait when every node was asked in vain.
const AGAIN: Duration = Duration::from_millis(20);

/// A client that knows all nodes, and prefers the first.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    nodes: Vec<SocketAddr>,
}

/// Some of what a node tells of the cluster.
#[derive(Debug, Deserialize)]
pub(crate) struct ClusterView {
    /// Who leads, as far as it knows.
    pub(crate) leader: Option<u16>,
}

impl Client {
    pub(crate) fn new(nodes: Vec<SocketAddr>) -> Self {
        Self { nodes }
    }

    /// `PUT /v1/leases/{lease_id}`, of one key for itself alone.
    pub(crate) async fn acquire(
        &self,
        lease_id: LeaseId,
        holder: &str,
        key: &Key,
        ttl_ms: u32,
        wait_ms: u32,
    ) -> anyhow::Result<Grant> {
        let wish = AcquireRequest {
            keys: vec![Claim { key: key.clone(), mode: Mode::Exclusive }],
            ttl_ms: Ttl::from_ms(ttl_ms).context("no lease lives so long, or so shortly")?,
            wait_ms: Wait::from_ms(wait_ms).context("no request waits so long")?,
            keep_place: false,
            holder: Holder::new(holder),
            metadata: Metadata::default(),
        };
        let waits = Duration::from_millis(wait_ms.into());
        let body = serde_json::to_vec(&wish)?.into();
        self.ask(Method::PUT, &format!("/v1/leases/{lease_id}"), body, waits).await
    }

    /// `GET /v1/leases/{lease_id}`, of a lease that is granted.
    pub(crate) async fn lease(&self, lease_id: LeaseId) -> anyhow::Result<Grant> {
        self.ask(Method::GET, &format!("/v1/leases/{lease_id}"), Bytes::new(), Duration::ZERO).await
    }

    /// `GET /v1/cluster`
    pub(crate) async fn cluster(&self) -> anyhow::Result<ClusterView> {
        self.ask(Method::GET, "/v1/cluster", Bytes::new(), Duration::ZERO).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        waits: Duration,
    ) -> anyhow::Result<T> {
        let what = format!("{method} {path}");
        let definite = self.definite(method, path, body, ONE_ANSWER + waits);
        let answer = timeout(DEFINITE + waits, definite).await;
        let answer = answer.with_context(|| format!("{what}: no definite answer in time"))?;
        if answer.status.is_success() {
            return serde_json::from_slice(&answer.body).with_context(|| what);
        }
        let problem = serde_json::from_slice::<Problem>(&answer.body);
        bail!(
            "{what}: {}: {}",
            answer.status,
            problem.map_or_else(|_| String::new(), |problem| problem.detail)
        )
    }

    async fn definite(&self, method: Method, path: &str, body: Bytes, within: Duration) -> Answer {
        loop {
            for &node in &self.nodes {
                let answer = exchange(node, method.clone(), path, body.clone(), within).await;
                match answer {
                    Ok(answer) if !answer.status.is_server_error() => return answer,
                    _ => {}
                }
            }
            sleep(AGAIN).await;
        }
    }
}
