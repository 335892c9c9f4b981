//! Three servers of etcd, each behind a proxy.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::{Client, EtcdCluster, until};
use serde_json::json;

use super::api::{Api, number, oldest};
use crate::clock::vdso;
use crate::fault::Fault;
use crate::front::{Front, Trap};
use crate::rung::Stage;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(30);

pub(in crate::rung) struct Members {
    cluster: EtcdCluster,
    fronts: Vec<Front>,
}

impl Members {
    pub(in crate::rung) async fn start() -> anyhow::Result<Self> {
        let cluster = EtcdCluster::start(Path::new("etcd")).await?;
        let fronts = Front::open_all(cluster.addresses(), &Trap::new(|_| true)).await?;
        Ok(Self { cluster, fronts })
    }

    async fn leader(&self) -> anyhow::Result<usize> {
        Ok(until(SOON, "a server of etcd leads", async || self.cluster.leader().await).await?)
    }

    async fn fail_over(&self) -> anyhow::Result<String> {
        let leader = self.leader().await?;
        self.cluster.servers().kill(leader)?;
        let other = self.leader().await?;
        Ok(format!("server {leader}, the leader, was killed; server {other} leads"))
    }

    async fn throw(&self, hours: i64) -> anyhow::Result<String> {
        let (servers, offset_s) = (self.cluster.servers(), i32::try_from(3_600 * hours)?);
        for (id, client) in self.cluster.clients().iter().enumerate() {
            let thrown = async || match servers.while_still(id, |pid| vdso::throw(pid, offset_s)).await {
                Ok(Ok(false)) => None,
                Ok(result) => Some(result.map(drop)),
                Err(error) => Some(Err(error.into())),
            };
            until(SOON, "no thread is in the vDSO", thrown).await??;
            let off_s = off_s(client).await?;
            ensure!((off_s - i64::from(offset_s)).abs() < 600, "server {id} is off by {off_s} s");
        }
        Ok(format!("the clocks of all servers are off by {hours} h"))
    }

    /// Waits until the leader has looked for leases that have ended since now.
    async fn looks_for_ended_leases(&self) -> anyhow::Result<()> {
        let mut api = Api::new(&self.cluster.addresses());
        let request = json!({ "TTL": "1" });
        let id = api.repeat("/v3/lease/grant", &request).await?["ID"].clone();
        let is_gone = async || {
            let left = api.clone().repeat("/v3/lease/timetolive", &json!({ "ID": id })).await.ok()?;
            (left.get("grantedTTL").is_none()).then_some(())
        };
        Ok(until(SOON, "a lease ends", is_gone).await?)
    }
}

/// How many seconds the clock is off that a server's answers have the date of.
async fn off_s(client: &Client) -> anyhow::Result<i64> {
    let answer = client.raw("GET", "/version", "").await?;
    let date = answer.headers.get("date").context("the answer has no date")?;
    let date = httpdate::parse_http_date(date.to_str()?)?;
    Ok(match date.duration_since(SystemTime::now()) {
        Ok(ahead) => i64::try_from(ahead.as_secs())?,
        Err(behind) => -i64::try_from(behind.duration().as_secs())?,
    })
}

impl Stage for Members {
    fn fronts(&self) -> Vec<&Front> {
        self.fronts.iter().collect()
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move {
            let Some(hours) = fault.server_clock_h() else { return self.fail_over().await };
            let observed = self.throw(hours).await?;
            if fault == Fault::ServerAhead {
                self.looks_for_ended_leases().await?;
            }
            Ok(observed)
        })
    }

    fn state(&self, key: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        let key = key.to_owned();
        Box::pin(async move {
            let mut api = Api::new(&self.cluster.addresses());
            let found = api.repeat("/v3/kv/range", &oldest(&key)).await?;
            let lease = found["kvs"][0].get("lease").context("it is stuck although there is no key")?;
            let left = api.repeat("/v3/lease/timetolive", &json!({ "ID": lease })).await?;
            ensure!(left.get("grantedTTL").is_some(), "it is stuck although the lease is gone");
            match number(&left["TTL"])? {
                left if left > 1_800 => Ok(format!("the key's lease has {left} s to live")),
                left if left < 0 => Ok(format!("the key's lease ended {} s ago and is not revoked", -left)),
                left => bail!("it is stuck although the key's lease has {left} s to live"),
            }
        })
    }
}
