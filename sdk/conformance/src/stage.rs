//! What a scenario works with: fronts before a real node, an adapter, and other clients that go to the node directly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ringfence_harness::{Answered, Client, Consistency, until};
use ringfence_wire::{EndReason, Key, KeyView, Mode, Token};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::adapter::{Adapter, Answer, Call, Refusal};
use crate::front::act::Act;
use crate::front::log::Asked;
use crate::front::{Front, Shared};
use crate::rival::{LONG_MS, Rival, take};
use crate::world::Live;

/// Bounds what has to happen, on a busy machine too.
pub const SOON: Duration = Duration::from_secs(40);
/// A time-to-live that is renewed within seconds, and that a busy machine does not outlive between two renewals.
pub const STEADY_MS: u64 = 10_000;

/// What one scenario has for itself.
pub struct Stage {
    /// Those whose URLs the client is given come first.
    pub fronts: Vec<Front>,
    /// What the fronts saw and do.
    pub shared: Arc<Shared>,
    /// The client library.
    pub adapter: Adapter,
    /// A client of the node behind the fronts.
    pub node: Client,
    /// A key of its own.
    pub key: String,
    /// For certificates.
    pub folder: TempDir,
    /// What the adapter says that its client can do.
    pub abilities: BTreeSet<String>,
    /// Whether time is scarce.
    pub is_quick: bool,
    /// The cluster that may be hurt, if the scenario is about that.
    pub live: Option<tokio::sync::OwnedMutexGuard<Live>>,
    /// The clients that are open.
    pub open: BTreeSet<String>,
    /// Whether the scenario has ended the adapter.
    pub has_ended: bool,
    /// What the adapter's process had before a client was opened, if it can tell.
    pub resources: Option<BTreeMap<String, u64>>,
}

/// A lease, as the adapter says.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The id.
    pub id: String,
    /// The token.
    pub token: u64,
}

impl Stage {
    /// Decides about each request at any front from now on.
    pub fn play(&self, script: impl FnMut(&Asked) -> Act + Send + 'static) {
        self.shared.play(script);
    }

    /// Opens the client `c` of these fronts.
    pub async fn open(&mut self, fronts: &[usize]) -> anyhow::Result<()> {
        let urls: Vec<String> = fronts.iter().map(|front| self.fronts[*front].url()).collect();
        self.open_with(json!({"urls": urls})).await?.map_err(|refusal| failure("open", &refusal)).map(drop)
    }

    /// Opens the client `c` as told.
    pub async fn open_with(&mut self, fields: Value) -> anyhow::Result<Answer> {
        let answer = self.ask("open", with(json!({"client": "c", "clock": "real"}), fields)).await?;
        if answer.is_ok() {
            self.open.insert("c".to_owned());
        }
        Ok(answer)
    }

    /// A request, and its answer.
    pub async fn ask(&mut self, op: &str, fields: Value) -> anyhow::Result<Answer> {
        self.adapter.begin(op, &fields).await?.answer().await
    }

    /// A request that has to succeed.
    pub async fn must(&mut self, op: &str, fields: Value) -> anyhow::Result<Value> {
        self.ask(op, fields).await?.map_err(|refusal| failure(op, &refusal))
    }

    /// Begins to acquire the lease `L` on the scenario's key; `fields` says what is different.
    pub async fn begin_acquire(&mut self, fields: Value) -> anyhow::Result<Call> {
        let usual =
            json!({"client": "c", "lease": "L", "keys": [self.key], "ttl_ms": LONG_MS, "wait_ms": 30_000});
        self.adapter.begin("acquire", &with(usual, fields)).await
    }

    /// Acquires; the answer is whatever it is.
    pub async fn acquire(&mut self, fields: Value) -> anyhow::Result<Answer> {
        self.begin_acquire(fields).await?.answer().await
    }

    /// Acquires, which has to succeed.
    pub async fn acquired(&mut self, fields: Value) -> anyhow::Result<Lease> {
        lease(self.acquire(fields).await?)
    }

    /// Opens the client of two fronts, and acquires.
    pub async fn holding(&mut self) -> anyhow::Result<Lease> {
        self.open(&[0, 1]).await?;
        self.acquired(json!({})).await
    }

    /// How the lease stands, as the adapter says.
    pub async fn state(&mut self, name: &str) -> anyhow::Result<(String, Option<String>)> {
        let state = self.must("state", json!({"lease": name})).await?;
        let text = |field: &str| state[field].as_str().map(str::to_owned);
        Ok((text("state").context("no `state`")?, text("reason")))
    }

    /// Releases it, which has to succeed.
    pub async fn release(&mut self, name: &str) -> anyhow::Result<()> {
        self.must("release", json!({"lease": name})).await.map(drop)
    }

    /// Ends the adapter, whatever is pending and open.
    pub async fn ends(&mut self) -> anyhow::Result<()> {
        self.has_ended = true;
        let status = self.adapter.exit().await?;
        ensure!(status.success(), "the adapter has ended with {status}");
        Ok(())
    }

    /// The key as the cluster has it.
    pub async fn view(&self, key: &str) -> anyhow::Result<KeyView> {
        let key = Key::new(key)?;
        Ok(self.node.patient().key(&key, Consistency::Linearizable).await.success()?)
    }

    /// Checks that the cluster has exactly this lease on the scenario's key.
    pub async fn is_held_by(&self, token: u64) -> anyhow::Result<()> {
        let holders: Vec<u64> = self.view(&self.key).await?.holders.iter().map(|one| one.token.0).collect();
        ensure!(holders == [token], "the cluster has the holders {holders:?}, not {token}");
        Ok(())
    }

    /// Waits until the cluster has neither holder nor waiter of the scenario's key.
    pub async fn is_free(&self) -> anyhow::Result<()> {
        let look = async || {
            let view = self.view(&self.key).await.ok()?;
            (view.holders.is_empty() && view.waiters.is_empty()).then_some(())
        };
        Ok(until(SOON, "nobody holds the key, or waits for it", look).await?)
    }

    /// Waits until this many wait for the scenario's key in the cluster.
    pub async fn waiters(&self, count: usize) -> anyhow::Result<()> {
        queued(&self.node, &self.key, count).await
    }

    /// Waits until somebody holds the scenario's key, and returns the token.
    pub async fn holder(&self) -> anyhow::Result<Token> {
        let look = async || self.view(&self.key).await.ok()?.holders.first().map(|one| one.token);
        Ok(until(SOON, "somebody holds the key", look).await?)
    }

    /// Another client takes the scenario's key.
    pub async fn rival(&self) -> anyhow::Result<Rival> {
        self.rival_waits(Mode::Exclusive, 0).await
    }

    /// Another client takes the scenario's key, and waits for it.
    pub async fn rival_waits(&self, mode: Mode, wait_ms: u32) -> anyhow::Result<Rival> {
        take(&self.node, &self.key, mode, LONG_MS, wait_ms).await
    }

    /// The rival releases it.
    pub async fn rival_leaves(&self, rival: Rival) -> anyhow::Result<()> {
        Ok(self.node.patient().release(rival.id).await.success()?)
    }

    /// An operator revokes what holds the scenario's key.
    pub async fn revoke(&self, token: Token) -> anyhow::Result<()> {
        Ok(self.node.patient().revoke(&Key::new(&self.key)?, token).await.success()?)
    }

    /// Waits for a request that `choose` chooses.
    pub async fn seen(&self, what: &str, choose: impl Fn(&Asked) -> bool) -> anyhow::Result<Asked> {
        self.shared.log.until(SOON, what, |all| all.iter().find(|asked| choose(asked)).cloned()).await
    }

    /// Waits until this many requests were seen that `choose` chooses.
    pub async fn seen_many(
        &self,
        count: usize,
        what: &str,
        choose: impl Fn(&Asked) -> bool,
    ) -> anyhow::Result<Vec<Asked>> {
        let look = |all: &[Asked]| {
            let found: Vec<Asked> = all.iter().filter(|asked| choose(asked)).cloned().collect();
            (found.len() >= count).then_some(found)
        };
        self.shared.log.until(SOON, what, look).await
    }

    /// Waits until the release of this lease was answered.
    pub async fn sees_release(&self, id: &str) -> anyhow::Result<Asked> {
        self.seen("a release of the lease is done", |asked| {
            asked.releases().contains(&id)
                && asked.told.is_some_and(|(status, _)| status < 300 || status == 410)
        })
        .await
    }

    /// The ids of all acquires so far, each once.
    pub fn put_ids(&self) -> BTreeSet<String> {
        self.shared.log.of(Asked::is_put).iter().map(|put| put.lease_id().to_owned()).collect()
    }

    /// The id of the only lease that was asked for.
    pub fn only_put_id(&self) -> anyhow::Result<String> {
        let ids = self.put_ids();
        ensure!(ids.len() == 1, "{} ids were used for one acquire", ids.len());
        Ok(ids.into_iter().next().unwrap_or_default())
    }

    /// A file for certificates.
    pub fn subfolder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// Waits until this many wait for a key.
pub async fn queued(client: &Client, key: &str, count: usize) -> anyhow::Result<()> {
    let key = Key::new(key)?;
    let look = async || {
        let view = client.patient().key(&key, Consistency::Linearizable).await.success().ok()?;
        (view.waiters.len() == count).then_some(())
    };
    Ok(until(SOON, format!("{count} wait for the key"), look).await?)
}

/// `base`, where `more` replaces and adds fields.
pub fn with(mut base: Value, more: Value) -> Value {
    if let (Some(base), Value::Object(more)) = (base.as_object_mut(), more) {
        base.extend(more);
    }
    base
}

/// The lease that an answer grants.
pub fn lease(answer: Answer) -> anyhow::Result<Lease> {
    let ok = answer.map_err(|refusal| failure("acquire", &refusal))?;
    let id = ok["lease_id"].as_str().context("no `lease_id`")?.to_owned();
    Ok(Lease { id, token: ok["token"].as_u64().context("no `token`")? })
}

/// The error of this kind that an answer has to be.
pub fn refused(answer: Answer, kind: &str) -> anyhow::Result<Refusal> {
    match answer {
        Err(refusal) if refusal.kind == kind => Ok(refusal),
        Err(refusal) => bail!("the error is {} ({}), not {kind}", refusal.kind, refusal.whole["message"]),
        Ok(ok) => bail!("it succeeded ({ok}), and has to fail with {kind}"),
    }
}

/// The reason of a loss.
pub fn reason(refusal: &Refusal) -> &str {
    refusal.whole["reason"].as_str().unwrap_or_default()
}

/// The end of a lease, as a node words it.
pub fn gone(reason: EndReason) -> Value {
    json!({"reason": reason})
}

fn failure(op: &str, refusal: &Refusal) -> anyhow::Error {
    anyhow::anyhow!("`{op}` failed with {}: {}", refusal.kind, refusal.whole["message"])
}
