//! Links between nodes that take long, or carry little.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use super::{Fault, Scene};
use crate::grey::flood::Flood;
use crate::grey::relay::Shape;
use crate::grey::stage::{Setup, Stage};

/// Every message takes half of this from one node to another.
#[derive(Debug)]
pub(in crate::grey) struct FarApart {
    pub(in crate::grey) round_trip_ms: u64,
    /// The leader is killed while they are far apart.
    pub(in crate::grey) elect: bool,
}

impl Fault for FarApart {
    fn setup(&self) -> Setup {
        Setup { relayed: true, ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let delay = Duration::from_millis(self.round_trip_ms / 2);
        scene.stage.relays.values().for_each(|relay| relay.shape(Shape { delay, ..Shape::default() }));
        if self.elect {
            scene.stage.node(scene.target).kill()?;
        }
        Ok(if self.elect { vec![scene.target] } else { Vec::new() })
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let bytes: u64 = scene.stage.relays.values().map(|relay| relay.bytes()).sum();
        ensure!(bytes > 0, "nothing was carried");
        Ok(format!("relays carried {bytes} bytes"))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.relays.values().for_each(|relay| relay.shape(Shape::default()));
        if self.elect {
            scene.stage.start(scene.target)?;
        }
        Ok(scene.stage.ids())
    }
}

/// What is sent to one node comes through at this rate, while clients write more than that.
#[derive(Debug)]
pub(in crate::grey) struct NarrowLink {
    pub(in crate::grey) bytes_per_s: u64,
    pub(in crate::grey) began: Option<(Instant, u64, Flood)>,
}

impl NarrowLink {
    pub(in crate::grey) fn of(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, began: None }
    }
}

impl Fault for NarrowLink {
    fn setup(&self) -> Setup {
        Setup { relayed: true, ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let relay = &scene.stage.relays[&scene.target];
        relay.shape(Shape { bytes_per_s: Some(self.bytes_per_s), ..Shape::default() });
        self.began = Some((Instant::now(), relay.bytes(), Flood::default()));
        Ok(vec![scene.target])
    }

    async fn go_on(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let leader = stage.leader().await?;
        match &self.began {
            Some((_, _, flood)) => flood.pour(&stage.node(leader).client()).await,
            None => std::future::pending().await,
        }
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let relay = &scene.stage.relays[&scene.target];
        let Some((since, before, flood)) = &self.began else { anyhow::bail!("it did not begin") };
        let seconds = since.elapsed().as_secs_f64();
        let (carried, written) = ((relay.bytes() - before) as f64 / seconds, flood.bytes() as f64 / seconds);
        ensure!(
            written > 1.2 * self.bytes_per_s as f64,
            "clients wrote {written:.0} bytes/s only, and the link carries {}",
            self.bytes_per_s
        );
        Ok(format!("clients wrote {:.1} MB/s, the link carried {:.1}", written / 1e6, carried / 1e6))
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.relays[&scene.target].shape(Shape::default());
        Ok(scene.stage.ids())
    }
}
