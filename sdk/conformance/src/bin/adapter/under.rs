//! Work under a lease, and what a program does around it by the language's own means.

use std::panic::resume_unwind;
use std::sync::Arc;

use ringfence_client::{Error, Lease};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::{Adapter, Answer, Failure, duration, internal, locked, say, text};

impl Adapter {
    pub(crate) async fn using(self: &Arc<Self>, fields: &Value) -> Answer {
        self.acquire("using", fields).await?;
        let lease = self.held(fields)?;
        let done = lease
            .run(async {
                match text(fields, "body") {
                    Ok("until_lost" | "swallow") => std::future::pending().await,
                    _ => tokio::time::sleep(duration(fields, "ms").unwrap_or_default()).await,
                }
            })
            .await;
        drop(lease);
        let released = self.leave(fields).await;
        if fields["body"] == "raise" {
            return Err(Failure::Body);
        }
        done?;
        released
    }

    /// Ends a block whose body has succeeded. Whatever has the lease may: it is moved there.
    pub(crate) async fn leave(&self, fields: &Value) -> Answer {
        match self.release(fields).await {
            Err(Failure::Client(Error::Unknown { .. } | Error::Unavailable { .. })) => Ok(json!({})),
            released => released,
        }
    }

    /// Drops the lease, and says nothing of its end.
    pub(crate) fn forget(&self, fields: &Value) -> Answer {
        let kept = locked(&self.leases).remove(text(fields, "lease")?);
        kept.ok_or_else(|| internal("there is no such lease"))?.tells.abort();
        Ok(json!({}))
    }

    pub(crate) async fn lead(&self, fields: &Value) -> Answer {
        let (name, body) = (text(fields, "lease")?, text(fields, "body")?);
        let lock = self.client(fields)?.lock(text(fields, "key")?);
        let lock = lock.ttl(duration(fields, "ttl_ms").unwrap_or_default());
        let (mut terms, mut reported) = (0, 0);
        let work = |lease: Lease| {
            terms += 1;
            say(&json!({"event": "leads", "lease": name, "token": lease.token().0}));
            let body = if terms == 1 { body } else { "return" };
            async move {
                match body {
                    "return" => Ok(()),
                    "raise" => Err(Failure::Body),
                    "raise_stale" => Err(lease.stale().into()),
                    // It is dropped by then.
                    _ => {
                        lease.lost().await;
                        Err(Failure::Body)
                    }
                }
            }
        };
        lock.lead_reporting(work, |_| reported += 1).await?;
        Ok(json!({"terms": terms, "reported": reported}))
    }
}

/// What a program does that wants to be told of a loss, and that fails then, or never returns.
pub(crate) fn call_back(lease: &Lease, on_lost: Option<&str>) {
    let lost = lease.lost();
    match on_lost {
        Some("raise") => {
            tokio::spawn(async move {
                lost.await;
                fails();
            });
        }
        Some(_) => {
            let runtime = Handle::current();
            // A thread may block, and keeps no program from its end.
            let started = ringfence_aside::start("on_lost", move || {
                runtime.block_on(lost);
                loop {
                    std::thread::park();
                }
            });
            if let Err(error) = started {
                eprintln!("there is no thread: {error}");
            }
        }
        None => {}
    }
}

/// A panic, which the hook says nothing of.
fn fails() {
    resume_unwind(Box::new("the callback failed"));
}
