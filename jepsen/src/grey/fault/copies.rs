//! Data directories that are not what they seem: copies, from before or beside.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_harness::{Client, LeftBehind, until};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Fault, Scene};
use crate::grey::figure::Figure;
use crate::grey::stage::{Setup, Stage, tool};

/// How long the others go on after a copy is made, and write what it lacks.
const MEANWHILE: Duration = Duration::from_secs(2);
/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(20);
/// What a log says that names such a directory: one of these, in a warning or an error.
const WORDS: [&str; 9] = [
    "older",
    "copy",
    "copied",
    "clone",
    "turned back",
    "had acknowledged",
    "lost what it acknowledged",
    "two processes",
    "fewer starts",
];

/// What is done with a copy of the target's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grey) enum Use {
    /// The target starts from it while the others run on.
    PutBack,
    /// The target starts from it when it alone had, with the leader, acknowledged a grant, and the leader is gone.
    PutBackAlone,
    /// A second process starts from it, at another address, and the leader is killed.
    Beside,
}

/// The copy, and what became of it.
#[derive(Debug)]
pub(in crate::grey) struct Copied {
    used: Use,
    /// The lengths of the logs before.
    before: Vec<usize>,
    connections: Option<(Instant, u64)>,
    original: Option<LeftBehind>,
    down: Option<u64>,
}

impl Copied {
    pub(in crate::grey) fn and(used: Use) -> Self {
        Self { used, before: Vec::new(), connections: None, original: None, down: None }
    }

    /// Whether a log has named the directory since it was put to use.
    fn is_named(&self, stage: &Stage) -> bool {
        // A node that has moved has a new log.
        let since = |(log, before): (String, &usize)| names_it(log.get(*before..).unwrap_or(&log));
        let logs = stage.cluster.nodes().iter().map(|node| node.log());
        logs.zip(&self.before).any(since)
            || self.original.as_ref().is_some_and(|original| names_it(&original.log()))
    }

    /// The others never knew what the target and the leader had acknowledged.
    async fn put_back_alone(&mut self, stage: &Stage, target: u64, copy: &Path) -> anyhow::Result<()> {
        let leader = stage.leader().await?;
        let other = stage.others(&[leader, target])[0];
        stage.node(other).kill()?;
        // What is granted now, the other never learns.
        sleep(MEANWHILE).await;
        stage.node(leader).kill()?;
        self.down = Some(leader);
        put_back(stage, target, copy).await?;
        stage.start(other)
    }
}

impl Fault for Copied {
    fn setup(&self) -> Setup {
        Setup { relayed: self.used == Use::PutBack, ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        let node = stage.node(target);
        node.terminate().await?;
        let copy = stage.folder.join("copy");
        copy_to(&node.data(), &copy).await?;
        stage.start(target)?;
        node.ready().await?;
        sleep(MEANWHILE).await;
        self.before = stage.cluster.nodes().iter().map(|node| node.log().len()).collect();
        match self.used {
            Use::PutBack => {
                put_back(stage, target, &copy).await?;
                self.connections =
                    stage.relays.get(&target).map(|relay| (Instant::now(), relay.connections()));
                Ok(vec![target])
            }
            Use::PutBackAlone => {
                self.put_back_alone(stage, target, &copy).await?;
                Ok(stage.ids())
            }
            Use::Beside => {
                let leader = stage.leader().await?;
                self.original = Some(node.leave_behind()?);
                copy_to(&copy, &node.data()).await?;
                stage.start(target)?;
                stage.node(leader).kill()?;
                self.down = Some(leader);
                Ok(vec![leader, target])
            }
        }
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let stage = scene.stage;
        if let Some((since, before)) = self.connections {
            let made = stage.relays[&scene.target].connections() - before;
            scene.figures.insert(Figure::Connections, made as f64 / since.elapsed().as_secs_f64());
        }
        // Neither of the two that run can tell. The third names it when it is back.
        if self.used != Use::PutBackAlone {
            scene.figures.insert(Figure::Unnamed, f64::from(!self.is_named(stage)));
        }
        Ok("a node was started from the copy".to_owned())
    }

    /// As operations.md has it: the directory is of no use, and its node is added anew. A clone just ends.
    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        self.down.map_or(Ok(()), |down| stage.start(down))?;
        if let (Use::PutBackAlone, Some(knows)) = (self.used, self.down) {
            let ended = async || stage.node(knows).take_ended().transpose();
            let _ = until(SOON, "the node that knows better ends", ended).await;
            scene.figures.insert(Figure::Unnamed, f64::from(!self.is_named(stage)));
            replace(stage, knows).await?;
            return Ok(stage.ids());
        }
        let Some(original) = &self.original else {
            replace(stage, target).await?;
            return Ok(stage.ids());
        };
        stage.node(target).kill()?;
        let client = original.client();
        until(SOON, "the original is ready", async || client.is_ready().await.then_some(())).await?;
        Ok(stage.others(&[target]))
    }
}

/// Removes the node, empties it, and adds it again.
async fn replace(stage: &Stage, target: u64) -> anyhow::Result<()> {
    let node = stage.node(target);
    node.kill()?;
    let others = stage.others(&[target]);
    stage.ready(&others, Instant::now(), SOON).await;
    let client = stage.node(others[0]).client();
    done(&client, "DELETE", &format!("/v1/cluster/members/{target}"), String::new()).await?;
    node.start_anew()?;
    let body = json!({ "id": target, "peer": node.advertised() }).to_string();
    done(&client, "POST", "/v1/cluster/members", body).await
}

/// Repeats a request until it is done.
async fn done(client: &Client, method: &str, path: &str, body: String) -> anyhow::Result<()> {
    let look = async || {
        client.raw(method, path, body.clone()).await.is_ok_and(|answer| answer.status < 300).then_some(())
    };
    Ok(until(SOON, format!("{method} {path} is done"), look).await?)
}

async fn put_back(stage: &Stage, target: u64, copy: &Path) -> anyhow::Result<()> {
    stage.node(target).wipe()?;
    copy_to(copy, &stage.node(target).data()).await?;
    stage.start(target)
}

/// Copies what is in a directory.
async fn copy_to(from: &Path, to: &Path) -> anyhow::Result<()> {
    let contents: PathBuf = from.join(".");
    std::fs::create_dir_all(to)?;
    tool("cp", [Path::new("-a"), &contents, to]).await
}

/// Whether a warning or an error in this log speaks of such a directory.
fn names_it(log: &str) -> bool {
    let mut serious =
        log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR") || line.contains("rror:"));
    serious.any(|line| WORDS.iter().any(|word| line.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_warning_or_an_error_names_it() {
        assert!(names_it("2026 WARN raft: node 2 has lost what it had acknowledged: remove it\n"));
        assert!(names_it("Error: this data directory is an older copy\n"));
        assert!(!names_it(
            "2026 INFO raft: a copy of the snapshot was taken\n2026 WARN raft: node 2 does not answer\n"
        ));
    }
}
