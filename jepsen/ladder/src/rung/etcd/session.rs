//! `concurrency.Session`: a lease that is kept alive in the background, by calls each third of its time to live.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::api::{Api, number};
use crate::step::Answer;

/// How long to wait before the next server is asked.
const AGAIN: Duration = Duration::from_millis(50);

/// A session; it is renewed until it is stopped or dropped, or the lease has ended.
pub(super) struct Session {
    lease: Lease,
    renewing: JoinHandle<()>,
}

#[derive(Clone)]
struct Lease {
    api: Api,
    id: i64,
}

impl Session {
    pub(super) async fn open(mut api: Api, ttl: Duration) -> anyhow::Result<Self> {
        let request = json!({ "TTL": ttl.as_secs().to_string() });
        let granted = api.repeat("/v3/lease/grant", &request).await?;
        let lease = Lease { api, id: number(&granted["ID"])? };
        let renewing = tokio::spawn(lease.clone().keep_alive(ttl / 3));
        Ok(Self { lease, renewing })
    }

    pub(super) fn lease(&self) -> i64 {
        self.lease.id
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.renewing.is_finished()
    }

    /// Renews once.
    pub(super) async fn touch(&mut self) -> anyhow::Result<Answer> {
        Ok(if self.lease.renew().await? { Answer::Alive } else { Answer::Lost })
    }

    pub(super) fn stop(&mut self) {
        self.renewing.abort();
    }

    /// Revokes the lease, and so deletes its keys. If that fails, it ends by itself.
    pub(super) async fn close(mut self) {
        self.stop();
        let request = json!({ "ID": self.lease.id.to_string() });
        let _ = self.lease.api.repeat("/v3/lease/revoke", &request).await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Lease {
    /// Returns whether the lease is there.
    async fn renew(&mut self) -> anyhow::Result<bool> {
        let request = json!({ "ID": self.id.to_string() });
        let answer = self.api.repeat("/v3/lease/keepalive", &request).await?;
        Ok(number(&answer["result"]["TTL"])? > 0)
    }

    async fn keep_alive(mut self, each: Duration) {
        loop {
            sleep(each).await;
            loop {
                match self.renew().await {
                    Ok(true) => break,
                    Ok(false) => return,
                    Err(_) => sleep(AGAIN).await,
                }
            }
        }
    }
}
