//! The end of a run: what the nodes are and say, and what their logs contain.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ringfence_harness::{LeftBehind, Node, Reply, definite};
use ringfence_laws::history::{End, NodeEnd};
use ringfence_wire::LeaseId;

use super::Field;
use crate::inspection;

/// Bounds the first write through a node, once all are ready.
const SERVES_WITHIN: Duration = Duration::from_secs(30);

impl Field {
    /// Records the state of each node, stops all, and inspects their logs. Copies their output to `store`.
    pub async fn finish(self, end: &mut End, store: &Path) -> anyhow::Result<()> {
        let mut ends = Vec::new();
        for node in self.cluster.nodes() {
            ends.push(NodeEnd { id: node.id(), serves: self.serves(node).await, ..NodeEnd::default() });
        }
        for node in self.cluster.nodes().iter().filter(|node| node.is_running()) {
            if let Err(error) = node.terminate().await {
                end.missing.push(format!("node {} did not stop in order: {error}", node.id()));
            }
        }
        self.cluster.kill_all()?;
        let left_behind: Vec<LeftBehind> = self.left_behind().drain(..).collect();
        for (node, end) in self.cluster.nodes().iter().zip(&mut ends) {
            let log = node.log();
            end.panics.extend(panics(&log));
            for (number, left) in left_behind.iter().filter(|left| left.id() == end.id).enumerate() {
                end.panics.extend(panics(&left.log()));
                let name = format!("node-{}-left-behind-{number}.log", end.id);
                std::fs::write(store.join(&name), left.log())
                    .with_context(|| format!("cannot write {name}"))?;
            }
            let findings = std::mem::take(&mut self.known().findings);
            let (own, others) = findings.into_iter().partition(|(id, _)| *id == end.id);
            self.known().findings = others;
            let own: Vec<(u64, String)> = own;
            end.panics.extend(own.into_iter().map(|(_, finding)| finding));
            let name = format!("node-{}.log", end.id);
            std::fs::write(store.join(&name), log).with_context(|| format!("cannot write {name}"))?;
        }
        end.nodes = ends;
        let folders = self.cluster.nodes().iter().map(|node| (node.id(), node.data())).collect();
        inspection::of(&self.options.inspector, &folders, end).await
    }

    /// Whether a write through this node is answered: one that every table refuses, so that it changes nothing.
    async fn serves(&self, node: &Node) -> bool {
        let (client, lease) = (node.client(), LeaseId::random());
        let renewed = definite(SERVES_WITHIN, || client.renew(lease, None)).await;
        matches!(renewed, Ok(Reply::Refused(_))) && node.ready().await.is_ok()
    }
}

fn panics(log: &str) -> impl Iterator<Item = String> {
    log.lines().filter(|line| line.contains("panicked")).map(str::to_owned)
}
