//! The nodes become new, old again, and new for good, one by one; then the rules are raised.

use std::time::Duration;

use tokio::time::sleep;

use super::scene::{Age, Scene};

/// How long the load goes on in each mix of programs.
const BETWEEN: Duration = Duration::from_secs(1);

impl Scene<'_> {
    pub(super) async fn roll(&mut self) -> anyhow::Result<()> {
        for age in [Age::New, Age::Old, Age::New] {
            let mut nodes: Vec<u64> = (1..=self.field.nodes()).collect();
            self.rng.shuffle(&mut nodes);
            for id in nodes {
                self.turn(id, age).await?;
                sleep(BETWEEN).await;
                if self.has_two_programs() && self.is_mixed() {
                    self.raise_too_early().await?;
                }
            }
        }
        match self.has_two_programs() {
            true => self.raise().await,
            false => Ok(()),
        }
    }
}
