use std::hash::{BuildHasher, RandomState};
use std::thread;

use ringfence_wire::Mode;

use crate::leases::{Lease, Leases, mode};
use crate::referee::{Referee, Report};
use crate::resource::Resource;

const ROUNDS: u64 = 2_000;
const HOLDERS: usize = 6;

/// Races for a new `resource` until [`ROUNDS`] leases were granted.
pub(crate) fn race(resource: &impl Resource) -> Report {
    assert_eq!(resource.read(), 0, "it is new");
    let (leases, referee) = (Leases::new(), Referee::new(ROUNDS, HOLDERS));
    thread::scope(|scope| {
        for _ in 0..HOLDERS {
            scope.spawn(|| {
                let mut dice = Dice::new();
                let _ends = EndsIfBroken(&referee);
                while referee.is_on() {
                    // A holder that will be late takes a short lease. The others renew or release in time.
                    let late = dice.below(2) == 0;
                    let ttl_ms = if late { 100 } else { 600_000 };
                    let mode = mode(dice.below(4));
                    if let Some(lease) = leases.acquire(mode, ttl_ms, || referee.is_on()) {
                        referee.round(&lease);
                        let round = Round { lease, late, resource, leases: &leases, referee: &referee };
                        round.run(&mut dice);
                    }
                }
            });
        }
    });
    referee.report(resource.read())
}

/// Ends the race on a panic: the others would wait for this holder for ever.
struct EndsIfBroken<'a>(&'a Referee);

impl Drop for EndsIfBroken<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken_off();
        }
    }
}

/// A lease from its grant to its last write, which may come long after it expired.
struct Round<'a, R> {
    lease: Lease,
    late: bool,
    resource: &'a R,
    leases: &'a Leases,
    referee: &'a Referee,
}

impl<R: Resource> Round<'_, R> {
    fn run(mut self, dice: &mut Dice) {
        dice.dawdle();
        if self.touch() {
            let mut number = self.resource.read();
            for _ in 0..=dice.below(2) {
                self.let_time_pass(dice);
                if self.lease.mode == Mode::Exclusive {
                    number += 1;
                }
                if !self.write(number) {
                    break;
                }
            }
        }
        if !self.late {
            self.leases.release(&self.lease);
        }
    }

    fn touch(&self) -> bool {
        let admission = self.resource.touch(self.lease.claim);
        self.referee.touched(self.leases, &self.lease, admission);
        admission.is_accepted()
    }

    fn write(&self, number: u64) -> bool {
        let must_reject = self.referee.must_reject(self.lease.claim);
        let admission = self.resource.write(self.lease.claim, number);
        self.referee.wrote(self.leases, &self.lease, must_reject, admission);
        admission.is_accepted()
    }

    fn let_time_pass(&mut self, dice: &mut Dice) {
        let draw = dice.below(4);
        if draw == 0 {
            self.leases.renew(&mut self.lease);
        } else if self.late {
            self.leases.outlast(&self.lease);
            self.referee.late();
            if draw == 1 {
                self.referee.newer_holder(self.lease.claim);
            }
        }
        dice.dawdle();
    }
}

/// Random numbers (xorshift64*), seeded by the system.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        Self(RandomState::new().hash_one(()) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }

    /// Sometimes yields to the other holders.
    fn dawdle(&mut self) {
        for _ in 0..self.below(4) {
            thread::yield_now();
        }
    }
}
