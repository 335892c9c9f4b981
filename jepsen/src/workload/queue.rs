//! Many who wait for few keys, and hold them briefly: first come, first served.

use futures_util::future::join_all;
use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, LeaseId};

use super::draws::Draws;
use super::{Turn, exclusive};
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
        let wish = self.wish(self.wait_ms, self.keep_place);
        let conclusion = match self.hangs_up_ms {
            Some(_) => process.ask_for(wish, self.hangs_up_ms).await?,
            None => process.repeat(wish).await?,
        };
        self.go_on(conclusion, process).await
    }
}

impl Stand {
    fn wish(&self, wait_ms: u32, keep_place: bool) -> Invocation {
        let keys = exclusive(&self.key);
        Invocation::Acquire { lease: self.lease, keys, ttl_ms: self.ttl_ms, wait_ms, keep_place }
    }

    /// What it does after its first answer.
    async fn go_on(&self, mut conclusion: Conclusion, process: &mut Process) -> Option<()> {
        for _ in 0..self.stays {
            if !matches!(conclusion, Conclusion::Waiting { .. }) {
                break;
            }
            conclusion = process.repeat(self.wish(self.wait_ms, self.keep_place)).await?;
        }
        match conclusion {
            Conclusion::Granted { .. } => process.rest(self.hold_ms).await?,
            // It leaves the queue, or its place is taken from it after 5 s.
            Conclusion::Waiting { .. } => {}
            _ => return Some(()),
        }
        if self.releases {
            process.repeat(Invocation::Release { lease: self.lease }).await?;
        }
        Some(())
    }
}

/// Some who come together: one batch takes their places, and then each waits for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crowd(Vec<Stand>);

impl Turn for Crowd {
    fn draw(draws: &mut Draws) -> Self {
        let count = draws.within(2..=4);
        Self((0..count).map(|_| Stand::draw(draws)).collect())
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self(stands) = self;
        let lanes: Vec<(Process, Invocation)> =
            (0..).zip(&stands).map(|(lane, stand)| (process.lane(lane), stand.wish(0, true))).collect();
        let conclusion = process.ask_together(&lanes).await?;
        let waits = lanes.into_iter().zip(&stands).zip(conclusion).map(
            async |(((mut lane, _), stand), conclusion)| {
                match conclusion {
                    // It may have its place, or the lease: the PUT tells.
                    Conclusion::Unknown { .. } => {
                        let conclusion = lane.repeat(stand.wish(stand.wait_ms, stand.keep_place)).await?;
                        stand.go_on(conclusion, &mut lane).await
                    }
                    conclusion => stand.go_on(conclusion, &mut lane).await,
                }
            },
        );
        join_all(waits).await.into_iter().collect()
    }
}
