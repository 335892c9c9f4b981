//! Many who wait for few keys, and hold them briefly: first come, first served.

use ringfence_wire::{Key, LeaseId};

use super::draws::Draws;
use super::{Turn, exclusive};
use crate::history::{Asked, Came};
use crate::process::Process;

/// What somebody who waits is going to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    lease: LeaseId,
    key: Key,
    ttl_ms: u32,
    wait_ms: u32,
    keep_place: bool,
    /// How often it asks again while its place is kept.
    stays: u32,
    hangs_up_ms: Option<u32>,
    hold_ms: u32,
    releases: bool,
}

impl Turn for Stand {
    fn draw(draws: &mut Draws) -> Self {
        let wait_ms = draws.within(500..=2_500);
        Self {
            lease: draws.lease(),
            key: draws.key(),
            ttl_ms: draws.within(400..=1_200),
            wait_ms,
            keep_place: draws.percent(60),
            stays: draws.within(0..=6),
            hangs_up_ms: draws.percent(5).then(|| draws.within(1..=wait_ms)),
            hold_ms: draws.within(5..=80),
            releases: draws.percent(90),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self { lease, key, ttl_ms, wait_ms, keep_place, .. } = self;
        let wish = Asked::Acquire { lease, keys: exclusive(&key), ttl_ms, wait_ms, keep_place };
        let mut came = match self.hangs_up_ms {
            Some(_) => process.ask_for(wish.clone(), self.hangs_up_ms).await?,
            None => process.repeat(wish.clone()).await?,
        };
        for _ in 0..self.stays {
            if !matches!(came, Came::Waiting { .. }) {
                break;
            }
            came = process.repeat(wish.clone()).await?;
        }
        match came {
            Came::Granted { .. } => process.rest(self.hold_ms).await?,
            // It leaves the queue, or its place is taken from it after 5 s.
            Came::Waiting { .. } => {}
            _ => return Some(()),
        }
        if self.releases {
            process.repeat(Asked::Release { lease }).await?;
        }
        Some(())
    }
}
