//! Programs that lock as with Redis: they set keys and delete them, with their values.

use ringfence_laws::history::{Conclusion, Invocation, ValuedKey};
use ringfence_wire::{Key, Token};

use super::Turn;
use super::draws::Draws;
use crate::process::Process;

/// What a client is going to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Sets one key, or several.
    Hold(Hold),
    /// Looks at a key.
    Look { key: Key },
}

/// Keys that are set together, and what is done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    keys: Vec<ValuedKey>,
    ttl_ms: u32,
    /// When it closes the connection, if it does not wait for the answer.
    hangs_up_ms: Option<u32>,
    /// Whether it finds out what came of an unknown answer. Else it is never heard of again.
    finds_out: bool,
    deeds: Vec<(u32, Deed)>,
    ends: Vec<End>,
    /// Set once all is over, on condition that it is not.
    after: Option<ValuedKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Deed {
    Expire {
        ttl_ms: u32,
    },
    Token,
    Get,
    Key {
        local: bool,
    },
    Validate {
        local: bool,
    },
    /// Sets another key, on condition that the first has its value.
    Another {
        at: ValuedKey,
        ttl_ms: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Delete,
    Revoke,
    Leave,
}

/// An element that is added to a set, under a lock that is tried for again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Add {
    lock: ValuedKey,
    element: u64,
    ttl_ms: u32,
    tries_after_ms: Vec<u32>,
    pause_ms: u32,
}

impl Turn for Errand {
    fn draw(draws: &mut Draws) -> Self {
        match draws.within(0..=9) {
            0..8 => Self::Hold(Hold::draw(draws)),
            _ => Self::Look { key: draws.key() },
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        match self {
            Self::Hold(hold) => hold.take(process).await,
            Self::Look { key } => process.ask(Invocation::Get { key }).await.map(drop),
        }
    }
}

impl Hold {
    fn draw(draws: &mut Draws) -> Self {
        let count = draws.one_of(&[1, 1, 1, 2, 3]);
        let keys = if count == 1 { vec![draws.key()] } else { draws.keys(count) };
        let hangs_up_ms = draws.percent(12).then(|| draws.within(1..=20));
        // Who hung up and found out is to have its keys for longer than it takes a node to take them back.
        let shortest_ms = if hangs_up_ms.is_some() { 2_300 } else { 300 };
        let deeds = draws.within(0..=4);
        Self {
            ends: keys
                .iter()
                .map(|_| draws.one_of(&[End::Delete, End::Delete, End::Leave, End::Revoke]))
                .collect(),
            keys: keys.into_iter().map(|key| valued(draws, key)).collect(),
            ttl_ms: draws.within(shortest_ms..=3_000),
            hangs_up_ms,
            finds_out: draws.percent(50),
            deeds: (0..deeds).map(|_| (draws.within(0..=400), Deed::draw(draws))).collect(),
            after: draws.percent(20).then(|| another(draws)),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self { keys, ttl_ms, hangs_up_ms, .. } = self;
        let set = Invocation::Set { keys: keys.clone(), ttl_ms, only_if: None };
        match process.ask_for(set, hangs_up_ms).await? {
            Conclusion::Done => {}
            Conclusion::Unknown { .. } if self.finds_out => {}
            _ => return Some(()),
        }
        let mut tokens = Vec::new();
        for at in &keys {
            tokens.push(token(process, at).await?);
        }
        for (pause_ms, deed) in self.deeds {
            process.rest(pause_ms).await?;
            deed.take(process, &keys[0], tokens[0]).await?;
        }
        for ((at, end), token) in keys.iter().cloned().zip(self.ends).zip(tokens) {
            match (end, token) {
                (End::Delete, _) => drop(process.repeat(Invocation::EndIf { at }).await?),
                (End::Revoke, Some(token)) => {
                    process.ask(Invocation::Revoke { key: at.key, token }).await?;
                }
                _ => {}
            }
        }
        match self.after {
            Some(at) => Deed::Another { at, ttl_ms }.take(process, &keys[0], None).await,
            None => Some(()),
        }
    }
}

impl Deed {
    fn draw(draws: &mut Draws) -> Self {
        match draws.within(0..=11) {
            0..3 => Self::Expire { ttl_ms: draws.within(300..=3_000) },
            3 => Self::Token,
            4..6 => Self::Get,
            6 => Self::Key { local: draws.percent(30) },
            7 => Self::Validate { local: draws.percent(30) },
            _ => Self::Another { at: another(draws), ttl_ms: draws.within(300..=3_000) },
        }
    }

    async fn take(self, process: &mut Process, at: &ValuedKey, token: Option<Token>) -> Option<()> {
        let (key, at) = (at.key.clone(), at.clone());
        let invocation = match (self, token) {
            (Self::Expire { ttl_ms }, _) => Invocation::ExpireIf { at, ttl_ms },
            (Self::Key { local }, _) => Invocation::Key { key, local },
            (Self::Validate { local }, Some(token)) => Invocation::Validate { key, token, local },
            (Self::Another { at: other, ttl_ms }, _) if other.key != key => {
                let (keys, only_if) = (vec![other.clone()], Some(at));
                let set = Invocation::Set { keys, ttl_ms, only_if };
                if process.ask(set).await? == Conclusion::Done {
                    self::token(process, &other).await?;
                    process.ask(Invocation::EndIf { at: other }).await?;
                }
                return Some(());
            }
            (Self::Token, _) => Invocation::Token { at },
            _ => Invocation::Get { key },
        };
        process.ask(invocation).await.map(drop)
    }
}

impl Turn for Add {
    fn draw(draws: &mut Draws) -> Self {
        let key = draws.key();
        Self {
            lock: valued(draws, key),
            element: draws.write(),
            ttl_ms: draws.within(1_000..=2_500),
            tries_after_ms: (0..20).map(|_| draws.within(50..=250)).collect(),
            pause_ms: draws.within(0..=60),
        }
    }

    async fn take(self, process: &mut Process) -> Option<()> {
        let Self { lock, element, ttl_ms, tries_after_ms, pause_ms } = self;
        let set = Invocation::Set { keys: vec![lock.clone()], ttl_ms, only_if: None };
        let mut conclusion = process.ask(set.clone()).await?;
        for pause_ms in tries_after_ms {
            // Only what certainly was not done is tried again with the same value.
            if !matches!(conclusion, Conclusion::Refused { .. } | Conclusion::NotDone { .. }) {
                break;
            }
            process.rest(pause_ms).await?;
            conclusion = process.ask(set.clone()).await?;
        }
        if !matches!(conclusion, Conclusion::Done | Conclusion::Unknown { .. }) {
            return Some(());
        }
        let Some(token) = token(process, &lock).await? else { return Some(()) };
        let key = lock.key.clone();
        let read = process.ask(Invocation::Read { key: key.clone(), token, fence: token }).await?;
        if let Conclusion::Register { value: over } = read {
            process.rest(pause_ms).await?;
            process.ask(Invocation::Write { key, token, fence: token, over, value: element }).await?;
        }
        process.repeat(Invocation::EndIf { at: lock }).await.map(drop)
    }
}

/// The token of what was set, if it is held.
async fn token(process: &mut Process, at: &ValuedKey) -> Option<Option<Token>> {
    Some(match process.repeat(Invocation::Token { at: at.clone() }).await? {
        Conclusion::Token { token } => Some(token),
        _ => None,
    })
}

fn another(draws: &mut Draws) -> ValuedKey {
    let key = draws.key();
    valued(draws, key)
}

/// `key` with a new value.
fn valued(draws: &mut Draws, key: Key) -> ValuedKey {
    ValuedKey { key, value: draws.lease() }
}
