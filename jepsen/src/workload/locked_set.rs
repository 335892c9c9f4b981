//! Sets to which everybody adds elements, under a lock: read, then write what was read and one more.
//!
//! A set is a chain of writes, each over the one before: who adds an element writes it over the last that was added.

use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, LeaseId};

use super::draws::Draws;
use super::{Turn, exclusive, held};
use crate::process::Process;

/// What somebody is going to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Add {
    lease: LeaseId,
    key: Key,
    element: u64,
    ttl_ms: u32,
    pause_ms: u32,
}

impl Turn for Add {
    fn draw(draws: &mut Draws) -> Self {
        Self {
            lease: draws.lease(),
            key: draws.key(),
            element: draws.write(),
            ttl_ms: draws.within(1_000..=2_500),
            pause_ms: draws.within(0..=60),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self { lease, key, element, ttl_ms, pause_ms } = self;
        let wish =
            Invocation::Acquire { lease, keys: exclusive(&key), ttl_ms, wait_ms: 3_000, keep_place: false };
        let Some((token, fence)) = held(process.repeat(wish).await?) else { return Some(()) };
        let read = process.ask(Invocation::Read { key: key.clone(), token, fence }).await?;
        if let Conclusion::Register { value: over } = read {
            process.rest(pause_ms).await?;
            process.ask(Invocation::Write { key, token, fence, over, value: element }).await?;
        }
        process.repeat(Invocation::Release { lease }).await?;
        Some(())
    }
}
