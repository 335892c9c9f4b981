//! Disks whose flushes take long.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use super::{Fault, Scene};
use crate::grey::bent::Word;
use crate::grey::figure::Figure;

/// A restart with slow disks is given up after this.
const BOUND: Duration = Duration::from_secs(40);

/// Which disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grey) enum Disks {
    /// That of the target.
    One,
    /// That of the target and of another.
    Two,
    /// All.
    All,
}

/// Flushes of these disks take this much longer.
#[derive(Debug)]
pub(in crate::grey) struct SlowFlushes {
    pub(in crate::grey) of: Disks,
    pub(in crate::grey) ms: i64,
    /// All nodes are killed and start again with such disks.
    pub(in crate::grey) restart: bool,
}

impl Fault for SlowFlushes {
    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (stage, target) = (scene.stage, scene.target);
        let nodes = match self.of {
            Disks::One => vec![target],
            Disks::Two => vec![target, stage.others(&[target])[0]],
            Disks::All => stage.ids(),
        };
        nodes.iter().try_for_each(|id| stage.bent(*id).set(Word::FlushMs, self.ms))?;
        if self.restart {
            stage.cluster.kill_all()?;
            let since = Instant::now();
            stage.ids().into_iter().try_for_each(|id| stage.start(id))?;
            scene.figures.insert(Figure::Rejoined, stage.ready(&stage.ids(), since, BOUND).await);
        }
        // Where one disk is slow, the node that has it is not expected to serve.
        Ok(if self.of == Disks::One { nodes } else { Vec::new() })
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let flushes = scene.stage.count(Word::Flushes)?;
        ensure!(flushes > 0, "no flush was slow");
        Ok(format!("{flushes} flushes took {} ms longer", self.ms))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let ids = scene.stage.ids();
        ids.iter().try_for_each(|id| scene.stage.bent(*id).set(Word::FlushMs, 0))?;
        Ok(ids)
    }
}
