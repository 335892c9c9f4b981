//! A Redis that hangs.

use anyhow::Context;

use super::{Fault, Scene};
use crate::grey::stage::Setup;

/// Redis is stopped: its connections stay open. Nodes answer once a fence is mirrored, or Redis is known to hang.
#[derive(Debug)]
pub(in crate::grey) struct HungRedis;

impl Fault for HungRedis {
    fn setup(&self) -> Setup {
        Setup { redis: true, ..Setup::default() }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.redis.as_ref().context("there is no Redis")?.stop().await?;
        Ok(Vec::new())
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        Ok("Redis stood still".to_owned())
    }

    async fn heal(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.redis.as_ref().context("there is no Redis")?.resume()?;
        Ok(scene.stage.ids())
    }
}
