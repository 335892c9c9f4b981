//! The nodes become new, old again, and new for good, one by one; then the rules are raised.

use std::time::Duration;

use tokio::time::sleep;

use super::scene::{Age, Scene};

/// How long the load goes on in each mix of programs.
const BETWEEN: Duration = Duration::from_secs(1);

impl Scene<'_> {
    pub(super) async fn roll(&mut self) -> anyhow::Result<()> {
        for age in [Age::New, Age::Old, Age::New] {
            for id in self.shuffled() {
                self.turn(id, age).await?;
                sleep(BETWEEN).await;
                if self.has_two_programs() && self.is_mixed() {
                    self.raise_too_early().await?;
                }
            }
        }
        if self.has_two_programs() && self.raise().await? {
            let id = self.rng.u64(1..=self.field.nodes());
            self.start_old(id).await?;
            self.add_old(id).await?;
        }
        Ok(())
    }
}
