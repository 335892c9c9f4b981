//! The state of a lease. Its handle, the renewal task and tasks that wait for its loss share it.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::{EndReason, Grant, LeaseId, Token};
use tokio::sync::watch;

use crate::clock::Moment;
use crate::lifetime::{Confirmation, Lifetime};
use crate::outlive::Least;
use crate::{Loss, State};

/// The longest sleep: the runtime's timers stand still while the machine sleeps.
pub(crate) const MAX_SLEEP: Duration = Duration::from_secs(1);

/// A lease that was granted.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease_id: LeaseId,
    pub(crate) token: Token,
    known: Mutex<Known>,
    /// Wakes those who wait for the loss, or another state. Time alone wakes nobody: they have timers.
    told: watch::Sender<()>,
}

#[derive(Debug)]
struct Known {
    /// As last confirmed.
    grant: Grant,
    lifetime: Lifetime,
}

impl Held {
    pub(crate) fn new(grant: Grant, lifetime: Lifetime) -> Self {
        Self {
            lease_id: grant.lease_id,
            token: grant.token,
            known: Mutex::new(Known { grant, lifetime }),
            told: watch::Sender::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.known().lifetime.state(Moment::now())
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.state(), State::Lost(_))
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.known().lifetime.remaining(Moment::now())
    }

    pub(crate) fn lifetime(&self) -> Lifetime {
        self.known().lifetime
    }

    pub(crate) fn read_grant<T>(&self, read: impl FnOnce(&Grant) -> T) -> T {
        read(&self.known().grant)
    }

    /// Takes an answer in. It does not revive a lost lease; an answer to an older request may extend it, but its grant is dropped.
    pub(crate) fn confirm(&self, confirmation: Confirmation) {
        let mut known = self.known();
        let was_held = known.lifetime.state(Moment::now()) == State::Held;
        let is_latest = known.lifetime.confirm(&confirmation, Moment::now());
        // The fences of an older answer may be lower.
        if is_latest {
            known.grant = confirmation.grant;
        }
        if !was_held {
            self.told.send_replace(());
        }
    }

    pub(crate) fn lose(&self, why: Loss) {
        self.known().lifetime.lose(why, Moment::now());
        self.told.send_replace(());
    }

    /// Its holder leaves it: it is lost for all who wait for that. Returns how long it lasts at least, which it does not if others may
    /// have the keys.
    pub(crate) fn leave(&self, least: Option<Least>) -> Option<Least> {
        let released = Loss::Ended(EndReason::Released);
        let state = self.state();
        self.lose(released);
        least.filter(|_| !matches!(state, State::Lost(loss) if loss != released && loss != Loss::MaxHold))
    }

    /// Returns when less than `margin` is left, or it is lost.
    pub(crate) async fn has_less_than(&self, margin: Duration) {
        let mut told = self.told.subscribe();
        loop {
            // Zero if it is lost.
            let left = self.remaining().saturating_sub(margin);
            if left.is_zero() {
                return;
            }
            tokio::select! {
                _ = told.changed() => {}
                () = tokio::time::sleep(nap(left)) => {}
            }
        }
    }

    /// Its state once that is another than `known`.
    pub(crate) async fn other_than(&self, known: Option<State>) -> State {
        let mut told = self.told.subscribe();
        loop {
            let (state, changes_in) = self.known().lifetime.state_and_time(Moment::now());
            if Some(state) != known {
                return state;
            }
            tokio::select! {
                _ = told.changed() => {}
                () = tokio::time::sleep(nap(changes_in)) => {}
            }
        }
    }

    /// Returns when it is lost.
    pub(crate) async fn lost(&self) -> Loss {
        loop {
            self.has_less_than(Duration::ZERO).await;
            if let State::Lost(loss) = self.state() {
                return loss;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while it holds this lock")
    }
}

/// How long to sleep before a look at the time that was `left`: less than that, because the runtime's clock may be slewed to run
/// slower than that of leases.
pub(crate) fn nap(left: Duration) -> Duration {
    (left - left / 8).clamp(Duration::from_millis(1), MAX_SLEEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_is_a_tenth_too_slow_is_never_late() {
        for millis in [2, 5, 10, 100, 999, 1_100, 60_000] {
            let left = Duration::from_millis(millis);
            assert!(nap(left) + nap(left) / 10 < left && nap(left) <= MAX_SLEEP, "{left:?}");
        }
        assert_eq!(nap(Duration::from_micros(1)), Duration::from_millis(1));
    }
}
