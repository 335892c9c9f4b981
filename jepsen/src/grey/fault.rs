//! The ways in which a cluster can be half broken. Each is a small type with its numbers; rows of the table share them.

pub(super) mod clocks;
pub(super) mod copies;
pub(super) mod flapping;
pub(super) mod flushes;
pub(super) mod links;
pub(super) mod logs;
pub(super) mod memory;
pub(super) mod names;
pub(super) mod nothing;
pub(super) mod packets;
pub(super) mod redis;
pub(super) mod stops;

use std::future::pending;

use super::figure::Figures;
use super::queue::Queue;
use super::stage::{Setup, Stage};

/// What a fault acts on.
pub(super) struct Scene<'a> {
    pub(super) stage: &'a Stage,
    pub(super) queue: &'a mut Queue,
    /// The node that it is aimed at.
    pub(super) target: u64,
    /// What it measures itself goes here.
    pub(super) figures: &'a mut Figures,
}

/// One way in which a cluster can be half broken.
pub(super) trait Fault: 'static {
    /// What it needs before the nodes start.
    fn setup(&self) -> Setup {
        Setup::default()
    }

    /// Does what else has to be done before the nodes start.
    async fn arrange(&mut self, _stage: &Stage) -> anyhow::Result<()> {
        Ok(())
    }

    /// Breaks what is not broken from the start. Returns the nodes that nobody can expect to be served by as long as that lasts.
    async fn inflict(&mut self, _: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// What goes on meanwhile, without an end.
    async fn go_on(&mut self, _stage: &Stage) -> anyhow::Result<()> {
        pending().await
    }

    /// What was observed of it, and is measured of it; an error if nothing was.
    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String>;

    /// Mends. Returns the nodes that are expected to become ready.
    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        Ok(scene.stage.ids())
    }
}
