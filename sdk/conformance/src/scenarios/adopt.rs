//! Leases that another process acquired.

use anyhow::ensure;
use ringfence_wire::Mode;
use serde_json::json;

use crate::rival::take;
use crate::stage::{STEADY_MS, Stage};

/// An adopted lease is renewed, and released once.
pub(crate) async fn adopted(stage: &mut Stage) -> anyhow::Result<()> {
    let left = take(&stage.node, &stage.key, Mode::Exclusive, STEADY_MS, 0).await?;
    let id = left.id.to_string();
    stage.open(&[0, 1]).await?;
    let adopted = stage.must("adopt", json!({"client": "c", "lease": "L", "lease_id": id})).await?;
    ensure!(adopted["token"] == left.token.0, "the token is {}, not {}", adopted["token"], left.token);
    let seen = stage.shared.log.count();
    stage
        .seen_many(2, "it is renewed", |asked| asked.index >= seen && asked.renews().contains(&&*id))
        .await?;
    stage.is_held_by(left.token.0).await?;
    stage.release("L").await?;
    stage.is_free().await?;
    stage.open.remove("c");
    stage.must("close", json!({"client": "c"})).await?;
    let releases = stage.shared.log.of(|asked| asked.releases().contains(&&*id));
    ensure!(releases.len() == 1, "it was released {} times", releases.len());
    Ok(())
}
