//! Leaders that change every few seconds.

use std::time::Duration;

use anyhow::ensure;
use ringfence_harness::Client;
use tokio::time::interval;

use super::{Fault, Scene};
use crate::grey::stage::Stage;

/// The leadership is handed over again and again.
#[derive(Debug)]
pub(in crate::grey) struct Flapping {
    pub(in crate::grey) each: Duration,
    pub(in crate::grey) transfers: usize,
}

impl Fault for Flapping {
    async fn go_on(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let mut ticks = interval(self.each);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let leader = stage.leader().await?;
            let next = leader % 3 + 1;
            if hand_over(&stage.node(leader).client(), next).await {
                self.transfers += 1;
            }
        }
    }

    async fn observed(&mut self, _: &mut Scene<'_>) -> anyhow::Result<String> {
        ensure!(self.transfers >= 3, "the leadership was handed over {} times only", self.transfers);
        Ok(format!("the leadership was handed over {} times", self.transfers))
    }
}

/// Whether the leadership was handed over.
async fn hand_over(client: &Client, to: u64) -> bool {
    let answer = client.raw("POST", "/v1/cluster/transfer", format!("{{\"to\":{to}}}")).await;
    answer.is_ok_and(|answer| answer.status < 300)
}
