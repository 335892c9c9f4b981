//! What is known of one lease: shared by its handle, by the keeper, and by whoever waits for its loss.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_wire::{Grant, Key, LeaseId, Token};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::lifetime::{Lifetime, Moment, Standing};
use crate::{Loss, State};

/// Sleeps are no longer than this, as the runtime's timers stand still while the machine sleeps.
const NAP: Duration = Duration::from_secs(1);

/// One lease.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease_id: LeaseId,
    pub(crate) token: Token,
    known: Mutex<Known>,
    loss: watch::Sender<Option<Loss>>,
}

#[derive(Debug)]
struct Known {
    grant: Grant,
    lifetime: Lifetime,
    renewal: Renewal,
}

/// How the keeper does with it.
#[derive(Debug, Default)]
struct Renewal {
    under_way: bool,
    /// Not before.
    again_at: Option<Moment>,
    backoff: Backoff,
}

/// Whether a lease is to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Now.
    Now,
    /// If there is a call anyway.
    Along,
    /// Not now.
    No,
}

/// A renewal that is under way: there is to be no other before its answer, or the end of the runtime that was to read it.
#[derive(Debug)]
pub(crate) struct Renewing(Arc<Held>);

impl Renewing {
    pub(crate) fn begin(held: &Arc<Held>) -> Self {
        held.known().renewal.under_way = true;
        Self(Arc::clone(held))
    }
}

impl Deref for Renewing {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.known().renewal.under_way = false;
    }
}

impl Held {
    pub(crate) fn new(grant: Grant, lifetime: Lifetime) -> Self {
        Self {
            lease_id: grant.lease_id,
            token: grant.token,
            known: Mutex::new(Known { grant, lifetime, renewal: Renewal::default() }),
            loss: watch::Sender::new(None),
        }
    }

    /// How it stands now. What was lost once stays so.
    pub(crate) fn state(&self, now: Moment) -> State {
        if let Some(loss) = *self.loss.borrow() {
            return State::Lost(loss);
        }
        let lifetime = self.known().lifetime;
        match lifetime.standing(now) {
            Standing::Held => State::Held,
            Standing::Doubtful => State::Unknown,
            Standing::Over => {
                self.lose(if lifetime.ends_by_choice() { Loss::MaxHold } else { Loss::Unconfirmed });
                // Somebody else may have been first, with another reason.
                self.loss.borrow().map_or(State::Lost(Loss::Unconfirmed), State::Lost)
            }
        }
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match *self.loss.borrow() {
            Some(_) => Duration::ZERO,
            None => self.known().lifetime.remaining(now),
        }
    }

    pub(crate) fn grant(&self) -> Grant {
        self.known().grant.clone()
    }

    pub(crate) fn fence(&self, key: &str) -> Option<Token> {
        let known = self.known();
        known.grant.keys.iter().find(|granted| granted.key.as_str() == key).map(|granted| granted.fence)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.known().grant.keys.iter().map(|granted| granted.key.clone()).collect()
    }

    /// The cluster confirmed it, to a request sent at `sent`. An answer that comes too late changes nothing.
    pub(crate) fn confirm(&self, sent: Moment, grant: Grant, now: Moment) {
        let mut known = self.known();
        let expires_in = Duration::from_millis(grant.expires_in_ms.unwrap_or_default());
        if known.lifetime.confirm(sent, Duration::from_millis(grant.ttl_ms.into()), expires_in, now) {
            known.grant = grant;
            known.renewal.again_at = Some(now.after(known.lifetime.pause()));
            known.renewal.backoff.reset();
        }
    }

    /// It is over, for the reason that was given first.
    pub(crate) fn lose(&self, why: Loss) {
        self.loss.send_if_modified(|loss| {
            let is_new = loss.is_none();
            loss.get_or_insert(why);
            is_new
        });
    }

    /// Whether it is to be renewed.
    pub(crate) fn due(&self, now: Moment) -> Due {
        let known = self.known();
        let is_past = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        if known.renewal.under_way || known.renewal.again_at.is_some_and(|at| at > now) {
            Due::No
        } else if is_past(known.lifetime.renew_at()) {
            Due::Now
        } else if is_past(known.lifetime.renew_along_at()) {
            Due::Along
        } else {
            Due::No
        }
    }

    /// When the keeper has to look at it again.
    pub(crate) fn look_at(&self) -> Moment {
        let known = self.known();
        let end = known.lifetime.end();
        match known.lifetime.renew_at() {
            Some(due) if !known.renewal.under_way => end.min(known.renewal.again_at.unwrap_or(due).max(due)),
            _ => end,
        }
    }

    /// How long a renewal may take, for another to be tried in time.
    pub(crate) fn patience(&self) -> Duration {
        self.known().lifetime.patience()
    }

    /// It came to nothing definite. The next follows at once, or after a `pause`.
    pub(crate) fn renewal_failed(&self, now: Moment, pause: bool) {
        let mut known = self.known();
        let most = known.lifetime.patience() / 2;
        let wait = if pause { known.renewal.backoff.next().min(most) } else { Duration::ZERO };
        known.renewal.again_at = Some(now.after(wait));
    }

    /// Returns when less than `margin` is left of it, or it is lost.
    pub(crate) async fn has_less_than(&self, margin: Duration) {
        let mut loss = self.loss.subscribe();
        loop {
            let now = Moment::now();
            let left = self.remaining(now).saturating_sub(margin);
            if left.is_zero() || matches!(self.state(now), State::Lost(_)) {
                return;
            }
            tokio::select! {
                _ = loss.changed() => {}
                () = tokio::time::sleep(left.min(NAP)) => {}
            }
        }
    }

    /// Returns when it is lost.
    pub(crate) async fn lost(&self) -> Loss {
        loop {
            self.has_less_than(Duration::ZERO).await;
            if let State::Lost(loss) = self.state(Moment::now()) {
                return loss;
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing that panics is done while it is locked")
    }
}
