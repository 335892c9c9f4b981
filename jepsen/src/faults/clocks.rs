//! Clocks that jump, once or back and forth.

use std::time::Duration;

use ringfence_laws::history::Fault;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Scene, named};
use crate::nemesis::Nemesis;

/// How often clocks jump back and forth.
const STROBE: Duration = Duration::from_millis(100);

impl Scene<'_> {
    pub(super) async fn jump_wall_clock(
        self,
        nodes: &[u64],
        by_s: i64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the wall clock of {} is off by {by_s:+} s", named(nodes));
        let fault = self.begun(Nemesis::WallClock, nodes, what);
        self.throw(nodes, by_s)?;
        sleep(lasts).await;
        self.throw(nodes, 0)?;
        Ok(self.over(fault))
    }

    pub(super) async fn strobe_wall_clock(
        self,
        nodes: &[u64],
        by_s: i64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the wall clock of {} jumps by {by_s:+} s and back all the time", named(nodes));
        let fault = self.begun(Nemesis::WallClock, nodes, what);
        let end = Instant::now() + lasts;
        for offset_s in [by_s, 0].into_iter().cycle() {
            self.throw(nodes, offset_s)?;
            if Instant::now() + STROBE > end {
                break;
            }
            sleep(STROBE).await;
        }
        sleep_until(end).await;
        self.throw(nodes, 0)?;
        Ok(self.over(fault))
    }

    pub(super) fn jump_monotonic_clock(self, nodes: &[u64], by_s: u64) -> anyhow::Result<Vec<Fault>> {
        let what = format!("both clocks of {} jump forward by {by_s} s", named(nodes));
        let fault = self.begun(Nemesis::MonotonicClock, nodes, what);
        let clocks = self.field.clocks()?;
        for id in nodes {
            clocks.throw(*id, clocks.offset_s(*id).saturating_add_unsigned(by_s))?;
        }
        Ok(self.over(fault))
    }

    fn throw(self, nodes: &[u64], offset_s: i64) -> anyhow::Result<()> {
        let clocks = self.field.clocks()?;
        Ok(nodes.iter().try_for_each(|id| clocks.throw(*id, offset_s))?)
    }
}
