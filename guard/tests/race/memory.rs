use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use ringfence_guard::{Admission, Claim, ClaimError, GuardedKey, MemoryGuard};
use ringfence_wire::Token;

use crate::race::race;
use crate::resource::Resource;

/// A number in memory, and the key that guards it.
struct Guarded {
    key: GuardedKey,
    number: AtomicU64,
}

impl Resource for Guarded {
    fn touch(&self, claim: Claim) -> Admission {
        self.key.touch(claim)
    }

    fn read(&self) -> u64 {
        self.number.load(SeqCst)
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.key.write(claim, || {
            std::thread::yield_now();
            self.number.store(number, SeqCst);
        })
    }
}

/// The number alone.
struct Plain(AtomicU64);

impl Resource for Plain {
    fn touch(&self, _: Claim) -> Admission {
        Admission::Accepted(())
    }

    fn read(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn write(&self, _: Claim, number: u64) -> Admission {
        self.0.store(number, SeqCst);
        Admission::Accepted(())
    }
}

#[test]
fn memory_rejects_late_holders_and_nobody_else() {
    let guard = MemoryGuard::new(1);
    let key = guard.key_or_ask(&"a".parse().unwrap(), |_| Ok::<_, ClaimError>(Token(1))).unwrap();
    race(&Guarded { key, number: AtomicU64::new(0) }).assert_right();
}

#[test]
fn memory_without_a_guard_loses_updates() {
    race(&Plain(AtomicU64::new(0))).assert_wrong();
}
