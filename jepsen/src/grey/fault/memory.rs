//! A node that may use less memory than the others.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::sleep;

use super::{Fault, Scene};
use crate::grey::flood::Flood;
use crate::grey::stage::{Setup, Stage, tool};

const LOOK: Duration = Duration::from_millis(200);

/// The node that has less memory than the others from the start. An allocator that finds plenty takes a gibibyte at once,
/// and what the node needs could not be told from that.
pub(in crate::grey) const NODE: u64 = 3;
const FIRST_KIB: u64 = 256 << 10;
/// How near to its limit a node is at which it has met it.
const NEAR_KIB: u64 = 2 << 10;

/// The node may have this much more data than it has, and no more, while clients write. It may end; the others go on.
#[derive(Debug)]
pub(in crate::grey) struct LittleMemory {
    more_kib: u64,
    limit_kib: u64,
    most_kib: u64,
    flood: Flood,
    ended: Option<String>,
}

impl LittleMemory {
    pub(in crate::grey) fn more(more_kib: u64) -> Self {
        Self { more_kib, limit_kib: 0, most_kib: 0, flood: Flood::of_new_leases(), ended: None }
    }

    async fn look(&mut self, stage: &Stage) -> anyhow::Result<()> {
        loop {
            if let Some(status) = stage.node(NODE).take_ended()? {
                self.ended = Some(status.to_string());
            }
            self.most_kib = self.most_kib.max(data_kib(stage, NODE).unwrap_or_default());
            sleep(LOOK).await;
        }
    }
}

impl Fault for LittleMemory {
    fn setup(&self) -> Setup {
        let shell: fn(u64, &Path) -> String = |id, _| match id {
            NODE => format!("ulimit -d {FIRST_KIB}; exec \"$@\""),
            _ => "exec \"$@\"".to_owned(),
        };
        Setup { shell: Some(shell), ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let pid = scene.stage.node(NODE).pid().context("the node has no process")?;
        self.limit_kib = data_kib(scene.stage, NODE).context("the node has no memory")? + self.more_kib;
        tool("prlimit", [format!("--pid={pid}"), format!("--data={}", self.limit_kib << 10)]).await?;
        Ok(vec![NODE])
    }

    async fn go_on(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let other = stage.node(stage.others(&[NODE])[0]).client();
        let flood = self.flood.clone();
        tokio::try_join!(self.look(stage), flood.pour(&other)).map(drop)
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let node = scene.stage.node(NODE);
        let ended = match node.take_ended()? {
            Some(status) => Some(status.to_string()),
            None => self.ended.take(),
        };
        let (most, limit) = (self.most_kib >> 10, self.limit_kib >> 10);
        match ended {
            Some(status) => Ok(format!("the node ended ({status}) with {most} of {limit} MiB")),
            None => {
                ensure!(
                    self.most_kib + NEAR_KIB > self.limit_kib,
                    "the node used {most} of {limit} MiB only"
                );
                Ok(format!("the node lives with {most} of {limit} MiB"))
            }
        }
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.restart(NODE)?;
        Ok(scene.stage.ids())
    }
}

/// What counts for the limit, in KiB.
fn data_kib(stage: &Stage, id: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", stage.node(id).pid()?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
