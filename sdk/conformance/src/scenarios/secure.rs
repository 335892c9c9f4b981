//! TLS and credentials.

use std::path::Path;

use anyhow::{bail, ensure};
use ringfence_harness::Certificates;
use serde_json::json;

use crate::front::Front;
use crate::front::act::Act;
use crate::stage::{Stage, refused};

const SECRET: &str = "conformance-secret-0123456789";

/// A credential goes to nodes whose certificates were verified, and to nobody else.
pub(crate) async fn credential(stage: &mut Stage) -> anyhow::Result<()> {
    // Over a plain connection everybody could read it.
    let plain = json!({"urls": [stage.fronts[0].url()], "credential": SECRET});
    match stage.open_with(plain).await? {
        Err(refusal) => ensure!(refusal.kind == "Invalid", "the error is {}, not Invalid", refusal.kind),
        Ok(_) => {
            refused(stage.acquire(json!({"wait_ms": 0})).await?, "Invalid")?;
        }
    }
    let own = Certificates::new(&stage.subfolder("own")?, "IP:127.0.0.1")?;
    let foreign = Certificates::new(&stage.subfolder("foreign")?, "IP:127.0.0.1")?;
    let (node, shared) = (stage.node.address(), stage.shared.clone());
    let good = Front::start(3, node, &shared, Some(&own))?;
    let bad = Front::start(4, node, &shared, Some(&foreign))?;
    // Responses name a plain node, then one of an authority that nobody trusts.
    let (mut turn, leaders) = (0, [stage.fronts[2].url(), bad.url()]);
    stage.play(move |_| {
        turn += 1;
        let leader = leaders[turn % 2].clone();
        Act::edit(move |reply| reply.headers.push(("ringfence-leader".to_owned(), leader)))
    });
    let fields = json!({"urls": [good.url()], "credential": SECRET, "ca": own.authority()});
    let opened = stage.open_with(fields).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    for name in ["1", "2", "3", "4", "5"] {
        stage.acquired(json!({"lease": name})).await?;
        stage.release(name).await?;
    }
    let all = stage.shared.log.all();
    let bearer = format!("Bearer {SECRET}");
    for asked in &all {
        ensure!(asked.front == 3, "a request went to front {}, which no credential may go to", asked.front);
        ensure!(
            asked.header("authorization") == Some(&*bearer),
            "{} {} has no credential",
            asked.method,
            asked.path
        );
    }
    stage.open.remove("c");
    stage.must("close", json!({"client": "c"})).await?;
    stage.fronts.extend([good, bad]);
    Ok(())
}

/// A client with another certificate is nobody, and the error says that it is the certificate.
pub(crate) async fn wrong_authority(stage: &mut Stage) -> anyhow::Result<()> {
    let own = Certificates::new(&stage.subfolder("own")?, "IP:127.0.0.1")?;
    let foreign = Certificates::new(&stage.subfolder("foreign")?, "IP:127.0.0.1")?;
    let front = Front::start(3, stage.node.address(), &stage.shared, Some(&foreign))?;
    let authority: &Path = own.authority();
    let opened = stage.open_with(json!({"urls": [front.url()], "ca": authority})).await?;
    ensure!(opened.is_ok(), "`open` failed: {opened:?}");
    let refusal = refused(stage.acquire(json!({})).await?, "Unavailable")?;
    let message = refusal.whole["message"].as_str().unwrap_or_default().to_lowercase();
    if !["certificate", "issuer", "self-signed", "signature"].iter().any(|word| message.contains(word)) {
        bail!("the error does not say that the certificate is wrong: {message}");
    }
    ensure!(stage.shared.log.count() == 0, "a request was sent to a node that was not verified");
    let connections = stage.shared.log.connections();
    ensure!(connections <= 2, "no repeat mends it, and the client has connected {connections} times");
    stage.fronts.push(front);
    Ok(())
}
