//! Programs that use the client library: some take turns at few keys, others keep a lease for as long as the run lasts.

use ringfence_client::{Lease, State};
use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::Key;

use super::Turn;
use super::draws::Draws;
use crate::process::Process;

/// An element that is added to a set, under a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Add {
    key: Key,
    element: u64,
    ttl_ms: u32,
    wait_ms: u32,
    pauses_ms: [u32; 2],
    looks: bool,
}

/// A lease that is kept until the end of the run. The library renews it, and so does its holder, now and then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    key: Key,
    ttl_ms: u32,
    pause_ms: u32,
    renews: u32,
}

impl Turn for Add {
    fn draw(draws: &mut Draws) -> Self {
        Self {
            key: draws.key(),
            element: draws.write(),
            ttl_ms: draws.within(6_000..=12_000),
            wait_ms: if draws.percent(70) { draws.within(2_000..=20_000) } else { 0 },
            pauses_ms: [draws.within(0..=60), draws.within(0..=30)],
            looks: draws.percent(30),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        if self.looks {
            process.look(&self.key).await?;
        }
        if let Ok(lease) = process.lock(&self.key, self.ttl_ms, self.wait_ms).await? {
            self.add(&lease, process).await;
            process.release(lease).await;
        }
        Some(())
    }
}

impl Add {
    async fn add(self, lease: &Lease, process: &mut Process) -> Option<()> {
        let (key, token, fence) = (self.key, lease.token(), lease.token());
        let read = process.ask(Invocation::Read { key: key.clone(), token, fence }).await?;
        let Conclusion::Register { value: over } = read else { return Some(()) };
        process.rest(self.pauses_ms[0]).await?;
        process.ask(Invocation::Write { key, token, fence, over, value: self.element }).await?;
        process.rest(self.pauses_ms[1]).await
    }
}

impl Turn for Keep {
    fn draw(draws: &mut Draws) -> Self {
        Self {
            key: draws.key(),
            ttl_ms: draws.within(6_000..=9_000),
            pause_ms: draws.within(300..=700),
            renews: draws.within(2..=20),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Ok(lease) = process.lock(&self.key, self.ttl_ms, 0).await? else { return Some(()) };
        self.keep(&lease, process).await;
        process.release(lease).await;
        Some(())
    }
}

impl Keep {
    async fn keep(&self, lease: &Lease, process: &mut Process) -> Option<()> {
        for turn in 1_u32.. {
            process.rest(self.pause_ms).await?;
            if let State::Lost(_) = lease.state() {
                // Its release records that.
                break;
            }
            match turn.is_multiple_of(self.renews) {
                true => process.renew(lease).await?,
                false => process.validate(lease, &self.key).await?,
            };
        }
        Some(())
    }
}
