//! Guards with one mistake each, which the referee must detect.

use std::sync::Mutex;

use ringfence_guard::{Admission, Claim, High};

use crate::race::race;
use crate::resource::Resource;

/// The mistake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// The number rises to the token, not to the fence.
    RaisesToTheToken,
    /// A new holder reads without a touch.
    ReadsUntouched,
    /// The check and the write are not atomic.
    ComparesThenWrites,
}

struct Broken {
    mistake: Mistake,
    high: Mutex<High>,
    number: Mutex<u64>,
}

impl Broken {
    fn admit(&self, claim: Claim) -> Admission {
        let claim = match self.mistake {
            Mistake::RaisesToTheToken => Claim::exclusive(claim.token()).unwrap(),
            _ => claim,
        };
        self.high.lock().unwrap().admit(claim)
    }
}

impl Resource for Broken {
    fn touch(&self, claim: Claim) -> Admission {
        match self.mistake {
            Mistake::ReadsUntouched => Admission::Accepted(()),
            _ => self.admit(claim),
        }
    }

    fn read(&self) -> u64 {
        *self.number.lock().unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        let mut atomically =
            (self.mistake != Mistake::ComparesThenWrites).then(|| self.number.lock().unwrap());
        let admission = self.admit(claim);
        if admission.is_accepted() {
            match &mut atomically {
                Some(held) => **held = number,
                None => {
                    (0..10).for_each(|_| std::thread::yield_now());
                    *self.number.lock().unwrap() = number;
                }
            }
        }
        admission
    }
}

fn broken(mistake: Mistake) -> Broken {
    Broken { mistake, high: Mutex::new(High::NEW), number: Mutex::new(0) }
}

#[test]
#[ignore = "slow"]
fn a_guard_that_raises_to_the_token_shuts_out_live_holders() {
    let report = race(&broken(Mistake::RaisesToTheToken));
    assert!(report.live_shut_out > 0, "{report:?}");
    assert_eq!((report.stale_writes, report.lost_updates), (0, 0), "{report:?}");
}

#[test]
fn a_read_without_a_touch_loses_updates() {
    let report = race(&broken(Mistake::ReadsUntouched));
    assert!(report.lost_updates > 0, "{report:?}");
}

#[test]
#[ignore = "slow"]
fn a_guard_that_compares_and_then_writes_loses_updates() {
    let report = race(&broken(Mistake::ComparesThenWrites));
    assert!(report.lost_updates > 0, "{report:?}");
}
