//! Processes that stand still.

use std::time::Duration;

use anyhow::{Context, ensure};
use ringfence_harness::Frozen;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Fault, Scene};
use crate::grey::bent::Word;
use crate::grey::figure::Figure;
use crate::grey::locker::Locker;
use crate::grey::stage::Setup;

/// For how long something is looked at once it goes on.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// The target hangs: its connections stay open, and its kernel acknowledges what comes.
#[derive(Debug)]
pub(in crate::grey) struct Hangs;

impl Fault for Hangs {
    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let node = scene.stage.node(scene.target);
        node.stop()?;
        node.stands_still().await?;
        Ok(vec![scene.target])
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        Ok("all threads stood still".to_owned())
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.node(scene.target).resume()?;
        Ok(scene.stage.ids())
    }
}

/// One thread of the target hangs, and all others run.
#[derive(Debug)]
pub(in crate::grey) struct OneHangs {
    /// `None`: that on which Raft runs.
    name: Option<&'static str>,
    frozen: Option<Frozen>,
}

impl OneHangs {
    /// The thread on which Raft runs.
    pub(in crate::grey) fn of_raft() -> Self {
        Self { name: None, frozen: None }
    }

    /// The thread with this name.
    pub(in crate::grey) fn named(name: &'static str) -> Self {
        Self { name: Some(name), frozen: None }
    }
}

impl Fault for OneHangs {
    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        self.frozen = Some(Frozen::thread(scene.stage.node(scene.target), self.name)?);
        Ok(vec![scene.target])
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        ensure!(self.frozen.as_ref().is_some_and(Frozen::stands_still), "the thread ran");
        Ok("the thread stood still".to_owned())
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        self.frozen = None;
        Ok(scene.stage.ids())
    }
}

/// The machine of the target and of the holder sleeps: none of their processes runs, and only CLOCK_BOOTTIME does.
#[derive(Debug)]
pub(in crate::grey) struct Sleeps;

impl Fault for Sleeps {
    fn setup(&self) -> Setup {
        let bent = || vec![(Word::Clocks, 1)];
        Setup { nodes: bent(), holder: bent(), ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let node = scene.stage.node(scene.target);
        node.stop()?;
        scene.queue.falls_silent().context("the holder has no process")?.signal_all(Signal::STOP)?;
        node.stands_still().await?;
        Ok(vec![scene.target])
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let last = scene.queue.holder().and_then(Locker::last).context("the holder has shown nothing")?;
        let slept = last.elapsed();
        for bent in [scene.stage.bent(scene.target), scene.stage.holder()] {
            bent.set(Word::AsleepMs, i64::try_from(slept.as_millis())?)?;
        }
        Ok(format!("a node and the holder slept for {:.1} s", slept.as_secs_f64()))
    }

    /// The holder has slept longer than its lease lasts. How long it works once it is awake is how long there are two.
    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        let (holder, woken) = (scene.queue.holder().context("the holder has no process")?, Instant::now());
        holder.signal_all(Signal::CONT)?;
        scene.stage.node(scene.target).resume()?;
        sleep(AFTERWARDS).await;
        let worked = holder.last().map_or(Duration::ZERO, |last| last.saturating_duration_since(woken));
        scene.figures.insert(Figure::Overlap, worked.as_secs_f64());
        Ok(scene.stage.ids())
    }
}
