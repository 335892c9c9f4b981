//! Clients that set keys over RESP.

use std::time::Duration;

use ringfence_laws::history::{Conclusion, Invocation, ValuedKey};
use ringfence_wire::{Key, LeaseId};

use super::{Client, key_number};

/// A time-to-live much longer than the time after which a lease is taken back.
const LONG_MS: u32 = 10_000;
/// The milliseconds after which a client hangs up, if it does not wait for the answer.
const HURRIED: [u64; 3] = [2, 10, 30];

impl Client {
    /// Sets one key or several, uses them, and deletes them or leaves them to their end.
    pub(super) async fn set(&mut self) {
        let count = *self.rng.choice(&[1, 1, 1, 2, 3]).unwrap_or(&1);
        let mut keys: Vec<Key> = (0..self.load.keys).map(key_number).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        let keys: Vec<ValuedKey> = keys.into_iter().map(|key| self.valued(key)).collect();
        let ttl_ms = if self.rng.u32(0..3) == 0 { LONG_MS } else { self.ttl_ms() };
        let set = Invocation::Set { keys: keys.clone(), ttl_ms, only_if: None };
        let is_hurried = self.rng.u32(0..4) == 0;
        let conclusion = match self.rng.choice(HURRIED).filter(|_| is_hurried) {
            Some(ms) => self.ask_within(set, Duration::from_millis(ms)).await,
            None => self.ask(set).await,
        };
        match conclusion {
            Conclusion::Done => {}
            // It may have been done.
            Conclusion::Unknown { .. } if !is_hurried && self.rng.bool() => {}
            _ => return,
        }
        let mut token = None;
        for at in &keys {
            if let Conclusion::Token { token: told } = self.repeat(Invocation::Token { at: at.clone() }).await
            {
                token = Some(told);
            }
        }
        self.use_set(&keys[0]).await;
        for at in keys {
            match (self.rng.u32(0..6), token) {
                (0..3, _) => drop(self.repeat(Invocation::EndIf { at: at.clone() }).await),
                (3, Some(token)) => drop(self.ask(Invocation::Revoke { key: at.key.clone(), token }).await),
                _ => {}
            }
            if self.rng.u32(0..4) == 0 {
                self.set_another(at).await;
            }
        }
    }

    async fn use_set(&mut self, at: &ValuedKey) {
        for _ in 0..self.rng.u32(0..5) {
            self.pause().await;
            let local = self.rng.u32(0..10) < 3;
            let (key, at) = (at.key.clone(), at.clone());
            let invocation = match self.rng.u32(0..10) {
                0..4 => Invocation::ExpireIf { at, ttl_ms: self.ttl_ms() },
                4..6 => Invocation::Get { key },
                6 => Invocation::Key { key, local },
                7 => Invocation::Token { at },
                _ => return self.set_another(at).await,
            };
            self.ask(invocation).await;
        }
    }

    /// Sets another key, on condition that this one still has its value.
    async fn set_another(&mut self, only_if: ValuedKey) {
        let key = self.key();
        if key == only_if.key {
            return;
        }
        let at = self.valued(key);
        let (keys, ttl_ms) = (vec![at.clone()], self.ttl_ms());
        let set = Invocation::Set { keys, ttl_ms, only_if: Some(only_if) };
        if matches!(self.ask(set).await, Conclusion::Done | Conclusion::Unknown { .. }) {
            self.repeat(Invocation::Token { at: at.clone() }).await;
            self.ask(Invocation::EndIf { at }).await;
        }
    }

    /// `key` with a value that no client has set.
    fn valued(&mut self, key: Key) -> ValuedKey {
        ValuedKey { key, value: LeaseId::from_u128(self.rng.u128(1..)).expect("it is not 0") }
    }
}
