//! Observes the holders, and counts what went wrong. It knows the rules, not the guard's number.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

use ringfence_guard::{Admission, Claim};
use ringfence_wire::{Mode, Token};

use crate::leases::{Lease, Leases};

#[derive(Debug)]
pub(crate) struct Referee {
    counts: Counts,
    course: Mutex<Course>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    exclusive_rounds: AtomicU64,
    shared_rounds: AtomicU64,
    late: AtomicU64,
    rejected: AtomicU64,
    exclusive_writes: AtomicU64,
    shared_writes: AtomicU64,
    stale_writes: AtomicU64,
    live_shut_out: AtomicU64,
}

#[derive(Debug)]
struct Course {
    rounds_left: u64,
    /// The largest fence whose holder knows that its touch was accepted.
    touched: Option<Token>,
    /// The number of holders not waiting in [`Referee::newer_holder`].
    awake: usize,
}

/// The result of a race.
#[derive(Debug)]
#[allow(dead_code, reason = "it is printed")]
pub(crate) struct Report {
    pub(crate) exclusive_rounds: u64,
    pub(crate) shared_rounds: u64,
    /// How often a lease expired before a write.
    pub(crate) late: u64,
    /// Rejected touches and writes of dead holders.
    pub(crate) rejected: u64,
    pub(crate) exclusive_writes: u64,
    pub(crate) shared_writes: u64,
    /// Accepted writes that began when a touch had already raised the fence above their token.
    pub(crate) stale_writes: u64,
    /// Rejected touches and writes of leases that were still live afterwards.
    pub(crate) live_shut_out: u64,
    /// Accepted exclusive writes missing from the result.
    pub(crate) lost_updates: u64,
}

impl Referee {
    pub(crate) fn new(rounds: u64, holders: usize) -> Self {
        let course = Course { rounds_left: rounds, touched: None, awake: holders };
        Self { counts: Counts::default(), course: Mutex::new(course), changed: Condvar::new() }
    }

    /// Whether the race goes on.
    pub(crate) fn is_on(&self) -> bool {
        self.course.lock().unwrap().rounds_left > 0
    }

    /// A lease was granted.
    pub(crate) fn round(&self, lease: &Lease) {
        match lease.mode {
            Mode::Exclusive => add_one(&self.counts.exclusive_rounds),
            Mode::Shared { .. } => add_one(&self.counts.shared_rounds),
        }
        let mut course = self.course.lock().unwrap();
        course.rounds_left = course.rounds_left.saturating_sub(1);
        self.changed.notify_all();
    }

    /// A holder's lease has expired.
    pub(crate) fn late(&self) {
        add_one(&self.counts.late);
    }

    /// Waits until another holder has shut this one out, unless all others wait too or the race has ended.
    pub(crate) fn newer_holder(&self, claim: Claim) {
        let mut course = self.course.lock().unwrap();
        course.awake -= 1;
        while course.awake > 0 && course.rounds_left > 0 && !course.is_dead(claim) {
            course = self.changed.wait(course).unwrap();
        }
        course.awake += 1;
    }

    /// A holder's thread has panicked: ends the race.
    pub(crate) fn broken_off(&self) {
        self.course.lock().unwrap().rounds_left = 0;
        self.changed.notify_all();
    }

    /// Notes the outcome of a touch.
    pub(crate) fn touched(&self, leases: &Leases, lease: &Lease, admission: Admission) {
        match admission {
            Admission::Accepted(()) => {
                let mut course = self.course.lock().unwrap();
                course.touched = course.touched.max(Some(lease.claim.fence()));
                self.changed.notify_all();
            }
            Admission::Stale { .. } => self.rejected(leases, lease),
        }
    }

    /// Whether a write that begins now must be rejected.
    pub(crate) fn must_reject(&self, claim: Claim) -> bool {
        self.course.lock().unwrap().is_dead(claim)
    }

    /// Notes the outcome of a write.
    pub(crate) fn wrote(&self, leases: &Leases, lease: &Lease, must_reject: bool, admission: Admission) {
        match (admission, lease.mode) {
            (Admission::Accepted(()), Mode::Exclusive) => add_one(&self.counts.exclusive_writes),
            (Admission::Accepted(()), Mode::Shared { .. }) => add_one(&self.counts.shared_writes),
            (Admission::Stale { .. }, _) => self.rejected(leases, lease),
        }
        if must_reject && admission.is_accepted() {
            add_one(&self.counts.stale_writes);
        }
    }

    fn rejected(&self, leases: &Leases, lease: &Lease) {
        match leases.is_live(lease) {
            true => add_one(&self.counts.live_shut_out),
            false => add_one(&self.counts.rejected),
        }
    }

    /// The result, given the final number in the resource.
    pub(crate) fn report(self, number: u64) -> Report {
        let counts = self.counts;
        let exclusive_writes = counts.exclusive_writes.into_inner();
        Report {
            exclusive_rounds: counts.exclusive_rounds.into_inner(),
            shared_rounds: counts.shared_rounds.into_inner(),
            late: counts.late.into_inner(),
            rejected: counts.rejected.into_inner(),
            exclusive_writes,
            shared_writes: counts.shared_writes.into_inner(),
            stale_writes: counts.stale_writes.into_inner(),
            live_shut_out: counts.live_shut_out.into_inner(),
            lost_updates: exclusive_writes
                .checked_sub(number)
                .expect("each exclusive write adds one at most"),
        }
    }
}

impl Course {
    fn is_dead(&self, claim: Claim) -> bool {
        self.touched > Some(claim.token())
    }
}

impl Report {
    /// Nothing went wrong, in a race that exercised everything.
    pub(crate) fn assert_right(&self) {
        eprintln!("guarded: {self:?}");
        let exercised = [
            self.exclusive_rounds,
            self.shared_rounds,
            self.late,
            self.rejected,
            self.exclusive_writes,
            self.shared_writes,
        ];
        assert!(exercised.iter().all(|&count| count > 100), "hardly a race: {self:?}");
        assert_eq!((self.stale_writes, self.live_shut_out, self.lost_updates), (0, 0, 0), "{self:?}");
    }

    /// What must go wrong without a guard.
    pub(crate) fn assert_wrong(&self) {
        eprintln!("without a guard: {self:?}");
        assert!(self.stale_writes > 0 && self.lost_updates > 0, "{self:?}");
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, SeqCst);
}
