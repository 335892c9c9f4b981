//! The resources that leases protect: registers in this process, each with a real guard of `ringfence-guard`.
//!
//! A register holds the id of the last accepted write. Without fencing it does not consult the guard, and a late holder
//! overwrites values that it never read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, bail};
use ringfence_guard::{Admission, Claim, GuardedKey, MemoryGuard};
use ringfence_harness::{Client, Consistency, Reply, definite};
use ringfence_laws::history::{Conclusion, Invocation};
use ringfence_wire::{Key, Token};

/// Bounds reading the fence of a key, before any fault.
const FENCE_WITHIN: Duration = Duration::from_secs(30);

/// Registers by key.
#[derive(Debug)]
pub struct Registers {
    fenced: bool,
    registers: HashMap<Key, Register>,
}

#[derive(Debug)]
struct Register {
    guard: GuardedKey,
    value: Mutex<u64>,
}

impl Registers {
    /// A register for each of `keys`, holding 0. The guards learn the fences from the cluster, as guards in memory must.
    pub async fn open(keys: &[Key], fenced: bool, cluster: &Client) -> anyhow::Result<Self> {
        let guard = MemoryGuard::new(10 * keys.len() + 100);
        let mut registers = HashMap::new();
        for key in keys {
            let guard = match guard.key(key) {
                Ok(known) => known,
                Err(unknown) => {
                    let read = || cluster.key(key, Consistency::Linearizable);
                    let Reply::Done { body: view, .. } = definite(FENCE_WITHIN, read).await? else {
                        bail!("the cluster refused to read the fence of {key}");
                    };
                    unknown.learn(view.fence)?.ok().context("a guard with room for all keys forgets none")?
                }
            };
            registers.insert(key.clone(), Register { guard, value: Mutex::default() });
        }
        Ok(Self { fenced, registers })
    }

    /// Executes a read or write; `None` if `invocation` is neither.
    pub(crate) fn ask(&self, invocation: &Invocation) -> Option<Conclusion> {
        let (key, token, fence, write) = match *invocation {
            Invocation::Read { ref key, token, fence } => (key, token, fence, None),
            Invocation::Write { ref key, token, fence, value, .. } => (key, token, fence, Some(value)),
            _ => return None,
        };
        Some(match self.registers.get(key) {
            Some(register) if self.fenced => register.guarded(token, fence, write),
            Some(register) => Conclusion::Register { value: register.exchange(write) },
            None => Conclusion::NotDone { why: format!("no register {key}") },
        })
    }
}

impl Register {
    /// The guard holds its lock: check and access are atomic.
    fn guarded(&self, token: Token, fence: Token, write: Option<u64>) -> Conclusion {
        let claim = match Claim::new(token, fence) {
            Ok(claim) => claim,
            Err(error) => {
                return Conclusion::Malformed { why: format!("no guard accepts this grant: {error}") };
            }
        };
        let mut value = 0;
        match self.guard.write(claim, || value = self.exchange(write)) {
            Admission::Accepted(()) => Conclusion::Register { value },
            Admission::Stale { high } => Conclusion::Stale { high },
        }
    }

    fn exchange(&self, write: Option<u64>) -> u64 {
        let mut value = self.value();
        *value = write.unwrap_or(*value);
        *value
    }

    fn value(&self) -> MutexGuard<'_, u64> {
        self.value.lock().expect("no panic while the value is locked")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

    use ringfence_guard::ClaimError;

    use super::*;

    fn registers(fenced: bool) -> Registers {
        let (key, memory) = (key(), MemoryGuard::new(10));
        let guard = memory.key_or_ask(&key, |_| Ok::<_, ClaimError>(Token(1))).unwrap();
        let register = Register { guard, value: Mutex::default() };
        Registers { fenced, registers: HashMap::from([(key, register)]) }
    }

    fn key() -> Key {
        Key::new("register/0").unwrap()
    }

    fn read(token: u64) -> Invocation {
        Invocation::Read { key: key(), token: Token(token), fence: Token(token) }
    }

    fn write(token: u64, over: u64, value: u64) -> Invocation {
        Invocation::Write { key: key(), token: Token(token), fence: Token(token), over, value }
    }

    #[test]
    fn only_a_guarded_register_rejects_holders_older_than_the_newest_reader() {
        let story = [read(3), write(3, 0, 31), read(5), write(3, 31, 32), write(5, 31, 51)];
        let tell = |fenced| {
            let registers = registers(fenced);
            story.clone().map(|invocation| registers.ask(&invocation).unwrap())
        };
        let holds = |value| Conclusion::Register { value };
        let stale = Conclusion::Stale { high: Token(5) };
        assert_eq!(tell(true), [holds(0), holds(31), holds(31), stale, holds(51)]);
        assert_eq!(tell(false), [holds(0), holds(31), holds(31), holds(32), holds(51)]);
    }

    #[test]
    fn a_fence_above_the_token_is_malformed() {
        let invocation = Invocation::Read { key: key(), token: Token(3), fence: Token(4) };
        assert!(matches!(registers(true).ask(&invocation), Some(Conclusion::Malformed { .. })));
    }
}
