//! Every call there is, on many keys: one to three of them at a time, alone and shared, at once and waiting; renewed, looked
//! at, released, revoked or left to end by themselves; repeated after unknown answers, or never heard of again.

use std::num::NonZeroU32;

use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, LeaseId, Mode, Token, WantedKey};

use super::Turn;
use super::draws::Draws;
use crate::process::Process;

/// What a client is going to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Takes a lease.
    Hold(Hold),
    /// Looks at a key.
    Look { key: Key, local: bool },
    /// Looks at a key, and asks about the newest token that it sees there, or about one that nobody ever had.
    Validate { key: Key, local: bool, looks_locally: bool },
    /// Looks at a key, and ends the oldest lease on it.
    Revoke { key: Key },
    /// Releases a lease that nobody has seen, and then asks for it: that must not grant.
    Forestall { lease: LeaseId, key: Key },
}

/// A lease, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    lease: LeaseId,
    keys: Vec<WantedKey>,
    ttl_ms: u32,
    wait_ms: u32,
    keep_place: bool,
    /// When it closes the connection, if it does not wait for the answer.
    hangs_up_ms: Option<u32>,
    /// After an unknown answer: when it asks again, if it does.
    repeats_after_ms: Option<u32>,
    /// How often it asks again while its place is kept.
    stays: u32,
    deeds: Vec<(u32, Deed)>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Renew { ttl_ms: Option<u32> },
    Repeat,
    Lease { local: bool },
    Key { local: bool },
    Validate { local: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Release,
    Revoke,
    Leave,
}

impl Turn for Errand {
    fn draw(draws: &mut Draws) -> Self {
        match draws.within(0..=99) {
            0..70 => Self::Hold(Hold::draw(draws)),
            70..82 => Self::Look { key: draws.key(), local: draws.percent(40) },
            82..90 => Self::Validate {
                key: draws.key(),
                local: draws.percent(30),
                looks_locally: draws.percent(50),
            },
            90..94 => Self::Revoke { key: draws.key() },
            _ => Self::Forestall { lease: draws.lease(), key: draws.key() },
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        match self {
            Self::Hold(hold) => hold.take(process).await,
            Self::Look { key, local } => process.ask(Invocation::Key { key, local }).await.map(drop),
            Self::Validate { key, local, looks_locally } => {
                let token = seen(process, &key, looks_locally).await?.last().copied().unwrap_or(Token(1));
                process.ask(Invocation::Validate { key, token, local }).await.map(drop)
            }
            Self::Revoke { key } => {
                let Some(&token) = seen(process, &key, true).await?.first() else { return Some(()) };
                process.ask(Invocation::Revoke { key, token }).await.map(drop)
            }
            Self::Forestall { lease, key } => {
                process.repeat(Invocation::Release { lease }).await?;
                let keys = vec![WantedKey { key, mode: Mode::Exclusive }];
                let wish = Invocation::Acquire { lease, keys, ttl_ms: 1_000, wait_ms: 0, keep_place: false };
                process.ask(wish).await.map(drop)
            }
        }
    }
}

/// The tokens that a look at `key` shows, the oldest first.
async fn seen(process: &mut Process, key: &Key, local: bool) -> Option<Vec<Token>> {
    Some(match process.ask(Invocation::Key { key: key.clone(), local }).await? {
        Conclusion::Key { view } => view.holders.iter().map(|holder| holder.token).collect(),
        _ => Vec::new(),
    })
}

impl Hold {
    fn draw(draws: &mut Draws) -> Self {
        let count = draws.one_of(&[1, 1, 1, 1, 2, 3]);
        let keys = if count == 1 { vec![draws.key()] } else { draws.keys(count) };
        let wait_ms = if draws.percent(50) { draws.within(100..=3_000) } else { 0 };
        let hangs_up_ms = draws.percent(12).then(|| draws.within(1..=wait_ms.max(20)));
        // Who hung up and asked again is to have its lease for longer than it takes a node to take it back.
        let shortest_ms = if hangs_up_ms.is_some() { 2_300 } else { 300 };
        let deeds = draws.within(0..=4);
        Self {
            lease: draws.lease(),
            keys: keys.into_iter().map(|key| WantedKey { key, mode: mode(draws) }).collect(),
            ttl_ms: draws.within(shortest_ms..=3_000),
            wait_ms,
            keep_place: draws.percent(50),
            hangs_up_ms,
            repeats_after_ms: draws.percent(75).then(|| draws.one_of(&[0, 0, 100, 1_900, 2_100])),
            stays: draws.within(0..=3),
            deeds: (0..deeds).map(|_| (draws.within(0..=400), deed(draws))).collect(),
            end: draws.one_of(&[
                End::Release,
                End::Release,
                End::Release,
                End::Leave,
                End::Leave,
                End::Revoke,
            ]),
        }
    }

    fn wish(&self) -> Invocation {
        let &Self { lease, ref keys, ttl_ms, wait_ms, keep_place, .. } = self;
        Invocation::Acquire { lease, keys: keys.clone(), ttl_ms, wait_ms, keep_place }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Some(token) = self.acquire(process).await? else { return Some(()) };
        let (lease, key) = (self.lease, &self.keys[0].key);
        for &(pause_ms, deed) in &self.deeds {
            process.rest(pause_ms).await?;
            let key = key.clone();
            let invocation = match deed {
                Deed::Renew { ttl_ms } => Invocation::Renew { lease, ttl_ms },
                Deed::Repeat => self.wish(),
                Deed::Lease { local } => Invocation::Lease { lease, local },
                Deed::Key { local } => Invocation::Key { key, local },
                Deed::Validate { local } => Invocation::Validate { key, token, local },
            };
            process.ask(invocation).await?;
        }
        match self.end {
            End::Release => process.repeat(Invocation::Release { lease }).await.map(drop),
            End::Revoke => process.ask(Invocation::Revoke { key: key.clone(), token }).await.map(drop),
            End::Leave => Some(()),
        }
    }

    /// The token, if it was granted. Who does not repeat after an unknown answer is never heard of again, and neither
    /// releases the lease.
    async fn acquire(&self, process: &mut Process) -> Option<Option<Token>> {
        let mut conclusion = process.ask_for(self.wish(), self.hangs_up_ms).await?;
        if let Conclusion::Unknown { .. } | Conclusion::NotDone { .. } = conclusion {
            let Some(pause_ms) = self.repeats_after_ms else { return Some(None) };
            process.rest(pause_ms).await?;
            conclusion = process.repeat(self.wish()).await?;
        }
        for _ in 0..self.stays {
            if !matches!(conclusion, Conclusion::Waiting { .. }) {
                break;
            }
            conclusion = process.repeat(self.wish()).await?;
        }
        if let (Conclusion::Waiting { .. }, End::Release) = (&conclusion, self.end) {
            process.repeat(Invocation::Release { lease: self.lease }).await?;
        }
        Some(match conclusion {
            Conclusion::Granted { grant, .. } => Some(grant.token),
            _ => None,
        })
    }
}

fn mode(draws: &mut Draws) -> Mode {
    match draws.within(0..=9) {
        0..6 => Mode::Exclusive,
        6..8 => Mode::Shared { limit: None },
        _ => Mode::Shared { limit: NonZeroU32::new(draws.within(2..=3)) },
    }
}

fn deed(draws: &mut Draws) -> Deed {
    let local = draws.percent(30);
    match draws.within(0..=9) {
        0..4 => Deed::Renew { ttl_ms: draws.percent(30).then(|| draws.within(300..=3_000)) },
        4 => Deed::Repeat,
        5..7 => Deed::Lease { local },
        7..9 => Deed::Key { local },
        _ => Deed::Validate { local },
    }
}
