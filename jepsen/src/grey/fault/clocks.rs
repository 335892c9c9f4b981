//! Clocks that are slewed, as chronyd does while it corrects them: by 8.3 % at most, unless it is told otherwise.

use anyhow::ensure;

use super::{Fault, Scene};
use crate::grey::bent::Word;
use crate::grey::stage::Setup;

/// The clocks of all nodes, or that of the holder, run this much faster. The holder reaches no node any more.
#[derive(Debug)]
pub(in crate::grey) struct Slewed {
    pub(in crate::grey) nodes_ppm: i64,
    pub(in crate::grey) holder_ppm: i64,
}

impl Fault for Slewed {
    fn setup(&self) -> Setup {
        let rate = |ppm| if ppm == 0 { Vec::new() } else { vec![(Word::Clocks, 1), (Word::RatePpm, ppm)] };
        Setup {
            network: true,
            nodes: rate(self.nodes_ppm),
            holder: rate(self.holder_ppm),
            ..Setup::default()
        }
    }

    async fn inflict(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<Vec<u64>> {
        scene.stage.cut_holder()?;
        scene.queue.falls_silent();
        Ok(Vec::new())
    }

    async fn observed(&mut self, scene: &mut Scene<'_>) -> anyhow::Result<String> {
        let of_nodes = scene.stage.count(Word::Readings)?;
        let of_holder = scene.stage.holder().get(Word::Readings)?;
        ensure!(self.nodes_ppm == 0 || of_nodes > 0, "no node has read its clock through the library");
        ensure!(
            self.holder_ppm == 0 || of_holder > 0,
            "the holder has not read its clock through the library"
        );
        Ok(format!("the clock was read {of_nodes} times by nodes, {of_holder} times by the holder"))
    }
}
