//! Holders that read a register, pause, and write over what they read: sometimes long after their lease has ended.
//!
//! ```text
//!  acquire ─ pause? ─ read (touches the guard) ─ pause, at times longer than the ttl ─ write ─ … ─ release, or leave it
//! ```
//! The same without asking the guard is the control: it must lose updates, or the pauses are not long enough.

use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, LeaseId};

use super::draws::Draws;
use super::{Turn, exclusive, held};
use crate::process::Process;

/// What a holder is going to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    lease: LeaseId,
    key: Key,
    ttl_ms: u32,
    wait_ms: u32,
    before_read_ms: u32,
    writes: Vec<Write>,
    releases: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    value: u64,
    pause_ms: u32,
    renews: bool,
}

impl Turn for Hold {
    fn draw(draws: &mut Draws) -> Self {
        let ttl_ms = draws.within(400..=1_200);
        let writes = draws.within(1..=3);
        Self {
            lease: draws.lease(),
            key: draws.key(),
            ttl_ms,
            wait_ms: if draws.percent(80) { draws.within(500..=3_000) } else { 0 },
            before_read_ms: pause(draws, ttl_ms, 15),
            writes: (0..writes).map(|_| Write::draw(draws, ttl_ms)).collect(),
            releases: draws.percent(60),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self { lease, key, ttl_ms, wait_ms, .. } = self;
        let wish = Invocation::Acquire { lease, keys: exclusive(&key), ttl_ms, wait_ms, keep_place: false };
        let Some((token, fence)) = held(process.repeat(wish).await?) else { return Some(()) };
        process.rest(self.before_read_ms).await?;
        let read = process.ask(Invocation::Read { key: key.clone(), token, fence }).await?;
        let Conclusion::Register { value: mut over } = read else { return Some(()) };
        for write in self.writes {
            process.rest(write.pause_ms).await?;
            if write.renews {
                // Whether it still holds the lease is not for the holder to judge: the register does.
                process.ask(Invocation::Renew { lease, ttl_ms: None }).await?;
            }
            let (key, value) = (key.clone(), write.value);
            match process.ask(Invocation::Write { key, token, fence, over, value }).await? {
                Conclusion::Register { value } => over = value,
                _ => return Some(()),
            }
        }
        if self.releases {
            process.repeat(Invocation::Release { lease }).await?;
        }
        Some(())
    }
}

impl Write {
    fn draw(draws: &mut Draws, ttl_ms: u32) -> Self {
        Self { value: draws.write(), pause_ms: pause(draws, ttl_ms, 30), renews: draws.percent(20) }
    }
}

/// A short pause, or in so many of a hundred cases one that outlives the lease.
fn pause(draws: &mut Draws, ttl_ms: u32, percent: u32) -> u32 {
    if draws.percent(percent) { ttl_ms + draws.within(200..=1_200) } else { draws.within(0..=150) }
}
