//! What leases are there to protect: registers in this process, each with a guard that is the real one of `ringfence-guard`.
//!
//! A register holds the id of the last write that it accepted. Without fencing the guard is not asked, and a holder that
//! wakes up too late overwrites what it never read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, bail};
use ringfence_guard::{Admission, Claim, GuardedKey, MemoryGuard};
use ringfence_harness::{Client, Consistency, Reply, definite};
use ringfence_wire::{Key, Token};

use crate::history::{Asked, Came};

/// How long the cluster may take to tell the fence of a key before there is any fault.
const FENCE_WITHIN: Duration = Duration::from_secs(30);

/// Registers, named by the keys that guard them.
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
    /// A register for each of `keys`, holding 0. Their guards learn the fences from the cluster, as a guard in memory has to.
    pub async fn open(keys: &[Key], fenced: bool, cluster: &Client) -> anyhow::Result<Self> {
        let guard = MemoryGuard::new(10 * keys.len() + 100);
        let mut registers = HashMap::new();
        for key in keys {
            let guard = match guard.key(key) {
                Ok(known) => known,
                Err(unknown) => {
                    let read = || cluster.key(key, Consistency::Linearizable);
                    let Reply::Done { body: view, .. } = definite(FENCE_WITHIN, read).await? else {
                        bail!("the cluster refuses to tell the fence of {key}");
                    };
                    unknown.learn(view.fence)?.ok().context("a guard with room for all keys forgets none")?
                }
            };
            registers.insert(key.clone(), Register { guard, value: Mutex::default() });
        }
        Ok(Self { fenced, registers })
    }

    /// Carries out a read or a write; `None` where `asked` is neither.
    pub(crate) fn ask(&self, asked: &Asked) -> Option<Came> {
        let (key, token, fence, write) = match *asked {
            Asked::Read { ref key, token, fence } => (key, token, fence, None),
            Asked::Write { ref key, token, fence, value, .. } => (key, token, fence, Some(value)),
            _ => return None,
        };
        Some(match self.registers.get(key) {
            Some(register) if self.fenced => register.guarded(token, fence, write),
            Some(register) => Came::Register { value: register.exchange(write) },
            None => Came::NotDone { why: format!("there is no register {key}") },
        })
    }
}

impl Register {
    /// The guard's lock is held over all of it: nothing comes between the check and the write, or the read.
    fn guarded(&self, token: Token, fence: Token, write: Option<u64>) -> Came {
        let claim = match Claim::new(token, fence) {
            Ok(claim) => claim,
            Err(error) => return Came::Malformed { why: format!("no guard takes this grant: {error}") },
        };
        let mut value = 0;
        match self.guard.write(claim, || value = self.exchange(write)) {
            Admission::Accepted(()) => Came::Register { value },
            Admission::Stale { high } => Came::Stale { high },
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
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

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

    fn read(token: u64) -> Asked {
        Asked::Read { key: key(), token: Token(token), fence: Token(token) }
    }

    fn write(token: u64, over: u64, value: u64) -> Asked {
        Asked::Write { key: key(), token: Token(token), fence: Token(token), over, value }
    }

    #[test]
    fn a_guarded_register_rejects_who_is_behind_the_newest_reader_and_another_does_not() {
        let story = [read(3), write(3, 0, 31), read(5), write(3, 31, 32), write(5, 31, 51)];
        let tell = |fenced| {
            let registers = registers(fenced);
            story.clone().map(|asked| registers.ask(&asked).unwrap())
        };
        let holds = |value| Came::Register { value };
        let stale = Came::Stale { high: Token(5) };
        assert_eq!(tell(true), [holds(0), holds(31), holds(31), stale, holds(51)]);
        assert_eq!(tell(false), [holds(0), holds(31), holds(31), holds(32), holds(51)]);
    }

    #[test]
    fn a_fence_above_the_token_is_an_answer_against_the_contract() {
        let asked = Asked::Read { key: key(), token: Token(3), fence: Token(4) };
        assert!(matches!(registers(true).ask(&asked), Some(Came::Malformed { .. })));
    }
}
