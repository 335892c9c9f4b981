//! What the data of stopped nodes says, as `ringfence inspect` tells it: every change that was agreed on, and the checksum
//! of each node's state after the same entries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use ringfence_laws::history::{Change, End};
use ringfence_wire::Revision;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

/// How many states are compared.
const STATES: u64 = 8;
/// Reading one node's data takes no longer.
const WITHIN: Duration = Duration::from_secs(120);
/// Its own words where a state is no longer, or not yet, in the data.
const OUT_OF_RANGE: &str = "cannot be told";

#[derive(Debug, Deserialize)]
struct Events {
    after_revision: Revision,
    events: Vec<Change>,
}

#[derive(Debug, Deserialize)]
struct State {
    index: u64,
    blake3: String,
}

#[derive(Debug, Deserialize)]
struct Snapshots {
    snapshots: Vec<State>,
}

/// How a node is asked.
struct Inspector<'a> {
    program: &'a Path,
}

/// Asks all nodes, by id, with their data.
pub(crate) async fn of(program: &Path, nodes: &BTreeMap<u64, PathBuf>, end: &mut End) -> anyhow::Result<()> {
    let inspector = Inspector { program };
    inspector.changes(nodes, end).await;
    inspector.states(nodes, end).await;
    Ok(())
}

impl Inspector<'_> {
    /// From the node whose log goes back farthest, and then on from those that know more.
    async fn changes(&self, nodes: &BTreeMap<u64, PathBuf>, end: &mut End) {
        let mut known: Vec<Events> = Vec::new();
        for (id, data) in nodes {
            match self.ask(data, &["events"]).await {
                Ok(events) => known.push(events),
                Err(error) => end.missing.push(format!("the changes that node {id} knows of: {error:#}")),
            }
        }
        known.sort_by_key(|events| events.after_revision);
        let mut known = known.into_iter();
        let Some(first) = known.next() else { return };
        (end.changes_after, end.changes) = (first.after_revision, first.events);
        for more in known {
            let last = end.changes.last().map_or(end.changes_after, |change| change.revision);
            // Else there is a gap, and what follows it says nothing of what is in it.
            if more.after_revision <= last {
                end.changes.extend(more.events.into_iter().filter(|change| change.revision > last));
            }
        }
    }

    /// After the last entry that all know to be committed, and some before it.
    async fn states(&self, nodes: &BTreeMap<u64, PathBuf>, end: &mut End) {
        let (mut first, mut last) = (0, u64::MAX);
        for (id, data) in nodes {
            match self.span(data).await {
                Ok((from, to)) => (first, last) = (first.max(from), last.min(to)),
                Err(error) => end.missing.push(format!("the states of node {id}: {error:#}")),
            }
        }
        if last == u64::MAX {
            return;
        }
        let first = first.min(last);
        let indexes: BTreeSet<u64> = (0..STATES).map(|part| last - (last - first) * part / STATES).collect();
        for node in &mut end.nodes {
            let Some(data) = nodes.get(&node.id) else { continue };
            for index in &indexes {
                match self.ask::<State>(data, &["state", "--index", &index.to_string()]).await {
                    Ok(state) => drop(node.states.insert(*index, state.blake3)),
                    Err(error) if error.to_string().contains(OUT_OF_RANGE) => {}
                    Err(error) => {
                        end.missing
                            .push(format!("the state of node {} after entry {index}: {error:#}", node.id));
                        break;
                    }
                }
            }
        }
        let common = indexes.iter().any(|index| end.nodes.iter().all(|node| node.states.contains_key(index)));
        if !common {
            end.missing.push(format!("no state between {first} and {last} is known of all nodes"));
        }
    }

    /// The first entry after which its state is sure to be told, and the last.
    async fn span(&self, data: &Path) -> anyhow::Result<(u64, u64)> {
        let snapshots: Snapshots = self.ask(data, &["snapshot"]).await?;
        let newest = snapshots.snapshots.iter().map(|state| state.index).max().unwrap_or(0);
        let state: State = self.ask(data, &["state"]).await?;
        Ok((newest, state.index))
    }

    async fn ask<T: DeserializeOwned>(&self, data: &Path, what: &[&str]) -> anyhow::Result<T> {
        let mut command = Command::new(self.program);
        command.arg("inspect").args(what).args(["--output", "json", "--data"]).arg(data);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(WITHIN, command.output());
        let output = output.await.map_err(|_| anyhow!("no answer within {WITHIN:?}"))?;
        let output = output.context("cannot run it")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", output.status, said.trim());
        serde_json::from_slice(&output.stdout).context("it is not what was expected")
    }
}
