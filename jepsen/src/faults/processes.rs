//! Processes that are killed or stopped.

use std::time::Duration;

use ringfence_laws::history::Fault;
use tokio::time::sleep;

use super::{Scene, named};
use crate::nemesis::Nemesis;

impl Scene<'_> {
    pub(super) async fn kill(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let fault = self.begun(Nemesis::Kill, nodes, format!("{} killed", named(nodes)));
        for id in nodes {
            self.field.kill(*id)?;
        }
        sleep(lasts).await;
        self.field.start_all(nodes)?;
        Ok(self.over(fault))
    }

    pub(super) async fn pause(
        self,
        nemesis: Nemesis,
        nodes: &[u64],
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let fault = self.begun(nemesis, nodes, format!("{} stopped", named(nodes)));
        for id in nodes {
            self.field.cluster().node(*id).stop()?;
        }
        sleep(lasts).await;
        for id in nodes {
            self.field.cluster().node(*id).resume()?;
        }
        Ok(self.over(fault))
    }
}
