//! How long a lease is certainly live, as far as its holder can know.
//!
//! The cluster guarantees `expires_in_ms` from when the request was *sent*, because it cannot have received the request
//! earlier. The holder counts on a [clock](crate::clock) that keeps running while the machine sleeps and that no time service
//! slows down, and subtracts an allowance for clocks that differ:
//!
//! ```text
//!  sent        renewed            in doubt           until    sent + expires_in
//!   |------------|------------------|------------------|---------|
//!   :    1/3     :       1/3        :       1/3        : allowance
//!        Held           Held              Unknown        Lost, for good
//! ```
//! The allowance is 0.2 % and 5 ms. Quartz is off by some 0.01 %, and the kernel's measure of a processor's clock by up to 0.05 %:
//! two clocks that are wrong in opposite directions differ by 0.12 %. The 5 ms are for timers, which fire late.
//!
//! Each confirmation gives a bound of its own. The latest bound counts, in whatever order responses arrive. A confirmation
//! that arrives after `until` does not revive the lease: its loss may have been reported already.

use std::time::Duration;

use ringfence_wire::Grant;
use serde::de::Error as _;

use crate::Loss;
use crate::clock::Moment;
use crate::transport::Response;

/// The allowance for clocks that run at different speeds, as a fraction of the time.
const DRIFT: u32 = 500;
/// The allowance for timers.
const LATE: Duration = Duration::from_millis(5);

/// How a lease stands, by its holder's own clock. It never errs on the side of *held*, unless that clock runs slow by more
/// than 0.2 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Confirmed lately: it certainly lives.
    Held,
    /// It certainly lives for [`remaining`](crate::Lease::remaining), but two thirds of its time have passed without a
    /// renewal: come to a point where you can stop. It may become held again.
    Unknown,
    /// It has ended, or may have. For good.
    Lost(Loss),
}

/// A grant, and when the request that it answers was sent.
#[derive(Debug)]
pub(crate) struct Confirmation {
    pub(crate) sent: Moment,
    pub(crate) grant: Grant,
}

impl Confirmation {
    pub(crate) fn read(response: &Response) -> serde_json::Result<Self> {
        let grant: Grant = response.json()?;
        match grant.expires_in_ms {
            Some(_) => Ok(Self { sent: response.sent, grant }),
            None => Err(serde_json::Error::missing_field("expires_in_ms")),
        }
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.grant.ttl_ms.into())
    }

    fn until(&self) -> Moment {
        let expires_in = Duration::from_millis(self.grant.expires_in_ms.unwrap_or_default());
        self.sent.after(expires_in.saturating_sub(expires_in / DRIFT + LATE))
    }
}

/// How long a lease certainly lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) ttl: Duration,
    /// When the latest of the confirmed requests was sent.
    sent: Moment,
    /// As confirmed.
    until: Moment,
    /// When its holder gives it up.
    hold_until: Option<Moment>,
    renews: bool,
    lost: Option<Loss>,
}

impl Lifetime {
    pub(crate) fn new(confirmation: &Confirmation) -> Self {
        let (ttl, sent, until) = (confirmation.ttl(), confirmation.sent, confirmation.until());
        Self { ttl, sent, until, hold_until: None, renews: true, lost: None }
    }

    /// Nobody renews it: it is held until it ends.
    pub(crate) fn without_renewals(self) -> Self {
        Self { renews: false, ..self }
    }

    /// Whether it is renewed.
    pub(crate) fn renews(&self) -> bool {
        self.renews
    }

    /// Its holder gives it up at `moment`.
    pub(crate) fn at_most_until(self, moment: Moment) -> Self {
        Self { hold_until: Some(moment), ..self }
    }

    /// Extends the lifetime, and adopts the time-to-live, which another client may have changed by the lease's id. Returns
    /// whether the confirmation was in time, and answers no older request than another: such a one takes nothing back.
    pub(crate) fn confirm(&mut self, confirmation: &Confirmation, now: Moment) -> bool {
        if let State::Lost(_) = self.state(now) {
            return false;
        }
        self.until = self.until.max(confirmation.until());
        let is_latest = confirmation.sent.has_reached(self.sent);
        if is_latest {
            (self.sent, self.ttl) = (confirmation.sent, confirmation.ttl());
        }
        is_latest
    }

    /// Ends it for this reason, unless it is lost already.
    pub(crate) fn lose(&mut self, why: Loss, now: Moment) {
        if let State::Held | State::Unknown = self.state(now) {
            self.lost = Some(why);
        }
    }

    /// A loss that was reported once is final, so it is stored.
    pub(crate) fn state(&mut self, now: Moment) -> State {
        if self.lost.is_none() && now.has_reached(self.end()) {
            self.lost = Some(if self.is_renewed_enough() { Loss::MaxHold } else { Loss::Unconfirmed });
        }
        match self.lost {
            Some(why) => State::Lost(why),
            None if self.needs_renewals() && now.has_reached(self.until.before(self.ttl / 3)) => {
                State::Unknown
            }
            None => State::Held,
        }
    }

    /// The state, and how long it lasts if nobody tells anything.
    pub(crate) fn state_and_time(&mut self, now: Moment) -> (State, Duration) {
        let state = self.state(now);
        let until = match state {
            State::Held if self.needs_renewals() => self.until.before(self.ttl / 3).min(self.end()),
            State::Held | State::Unknown | State::Lost(_) => self.end(),
        };
        (state, until.since(now))
    }

    pub(crate) fn remaining(&mut self, now: Moment) -> Duration {
        match self.state(now) {
            State::Lost(_) => Duration::ZERO,
            State::Held | State::Unknown => self.end().since(now),
        }
    }

    /// Whether a holder may begin: at least half of the time-to-live is left.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.until.since(now) >= self.ttl / 2
    }

    /// When it is due to be renewed, a third of its time after the last confirmed request; `None` if it is not.
    pub(crate) fn renew_at(&self) -> Option<Moment> {
        self.needs_renewals().then(|| self.until.before(self.ttl / 3 * 2))
    }

    /// From when on it is renewed along with a lease that is due: after a sixth of its time. So leases with the same
    /// time-to-live are soon renewed together, whenever each was acquired.
    pub(crate) fn renew_early_at(&self) -> Option<Moment> {
        self.renew_at().map(|due| due.before(self.ttl / 6))
    }

    fn end(&self) -> Moment {
        self.hold_until.map_or(self.until, |hold_until| hold_until.min(self.until))
    }

    fn needs_renewals(&self) -> bool {
        self.renews && !self.is_renewed_enough()
    }

    /// Whether its holder gives it up before it ends.
    fn is_renewed_enough(&self) -> bool {
        self.hold_until.is_some_and(|hold_until| self.until.has_reached(hold_until))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{EndReason, GrantState, LeaseId, Token};

    use super::*;

    /// 9 s less 0.2 % and 5 ms.
    const SURE_MS: u64 = 9_000 - 18 - 5;
    const UNCONFIRMED: State = State::Lost(Loss::Unconfirmed);

    fn at(ms: u64) -> Moment {
        Moment::from_ms(1_000_000 + ms)
    }

    fn confirmation(sent: Moment, ttl_ms: u32, expires_in_ms: u64) -> Confirmation {
        let grant = Grant {
            lease_id: LeaseId::random(),
            state: GrantState::Granted,
            token: Token(1),
            holder: None,
            ttl_ms,
            expires_in_ms: Some(expires_in_ms),
            keys: Vec::new(),
        };
        Confirmation { sent, grant }
    }

    /// Confirms 9 s.
    fn sent_at(ms: u64) -> Confirmation {
        confirmation(at(ms), 9_000, 9_000)
    }

    fn lifetime() -> Lifetime {
        Lifetime::new(&sent_at(0))
    }

    #[test]
    fn time_counts_from_when_the_request_was_sent_less_the_allowance() {
        assert_eq!(lifetime().remaining(at(0)), Duration::from_millis(SURE_MS));
        assert_eq!(lifetime().remaining(at(7_000)), Duration::from_millis(SURE_MS - 7_000));
        assert_eq!(lifetime().remaining(at(SURE_MS + 1)), Duration::ZERO);
        // A repeated acquire finds less than the time-to-live left.
        let remaining = |ms| Lifetime::new(&confirmation(at(0), 9_000, ms)).remaining(at(0));
        assert_eq!(remaining(1_000), Duration::from_millis(1_000 - 2 - 5));
        assert_eq!(remaining(3), Duration::ZERO);
    }

    #[test]
    fn a_lease_is_held_then_unknown_then_lost() {
        assert_eq!(lifetime().renew_at(), Some(at(SURE_MS - 6_000)));
        assert_eq!(lifetime().renew_early_at(), Some(at(SURE_MS - 7_500)));
        let mut lifetime = lifetime();
        for (ms, state) in [
            (0, State::Held),
            (SURE_MS - 3_001, State::Held),
            (SURE_MS - 3_000, State::Unknown),
            (SURE_MS - 1, State::Unknown),
            (SURE_MS, UNCONFIRMED),
            (1_000_000, UNCONFIRMED),
        ] {
            assert_eq!(lifetime.state(at(ms)), state, "after {ms} ms");
        }
    }

    #[test]
    fn the_latest_confirmation_counts_in_whatever_order_they_arrive() {
        let mut lifetime = lifetime();
        assert!(lifetime.confirm(&sent_at(7_000), at(8_000)));
        assert_eq!(lifetime.state(at(8_000)), State::Held);
        assert_eq!(lifetime.remaining(at(8_000)), Duration::from_millis(SURE_MS - 1_000));
        assert!(!lifetime.confirm(&sent_at(3_000), at(8_001)), "its fences are older");
        assert_eq!(lifetime.remaining(at(8_000)), Duration::from_millis(SURE_MS - 1_000));
    }

    /// With the old one, too little of the new was always left, and renewals followed each other.
    #[test]
    fn a_lease_adopts_a_time_to_live_that_was_changed_by_its_id() {
        let mut lifetime = lifetime();
        assert!(lifetime.confirm(&confirmation(at(3_000), 3_000, 3_000), at(3_010)));
        assert_eq!(lifetime.renew_at(), Some(at(SURE_MS - 2_000)), "it ends no earlier");
        assert!(lifetime.confirm(&confirmation(at(7_000), 3_000, 3_000), at(7_010)));
        assert_eq!(lifetime.renew_at(), Some(at(7_000 + 3_000 - 6 - 5 - 2_000)));
    }

    #[test]
    fn a_confirmation_that_arrives_too_late_does_not_revive_a_lease() {
        let mut lost = lifetime();
        assert!(!lost.confirm(&sent_at(SURE_MS - 10), at(SURE_MS)));
        assert_eq!(lost.state(at(SURE_MS)), UNCONFIRMED);
        let mut in_time = lifetime();
        assert!(in_time.confirm(&sent_at(SURE_MS - 10), at(SURE_MS - 1)));
        assert_eq!(in_time.state(at(SURE_MS)), State::Held);
        // Two threads read the clock; the later reading was reported first.
        let mut reported = lifetime();
        assert_eq!(reported.state(at(SURE_MS)), UNCONFIRMED);
        assert!(!reported.confirm(&sent_at(SURE_MS - 10), at(SURE_MS - 1)));
        assert_eq!(reported.state(at(SURE_MS - 1)), UNCONFIRMED);
        assert_eq!(reported.remaining(at(SURE_MS - 1)), Duration::ZERO);
    }

    /// A time service may slow one clock of the holder down, but not both.
    #[test]
    fn a_lease_is_lost_in_time_if_one_clock_runs_slow() {
        let slow_raw: fn(u64, u64) -> Moment = |right, slow| Moment::on_both(right, slow);
        let slow_boot: fn(u64, u64) -> Moment = |right, slow| Moment::on_both(slow, right);
        for moment in [slow_raw, slow_boot] {
            let at = |real_ms: u64| moment(1_000_000 + real_ms, 1_000_000 + real_ms * 9 / 10);
            let mut lifetime = lifetime();
            assert_eq!(lifetime.state(at(SURE_MS - 1)), State::Unknown);
            assert_eq!(lifetime.remaining(at(SURE_MS - 1)), Duration::from_millis(1));
            assert_eq!(lifetime.state(at(SURE_MS)), UNCONFIRMED);
            // A renewal counts from when it was sent, on both.
            let mut renewed = self::lifetime();
            assert!(renewed.confirm(&confirmation(at(5_000), 9_000, 9_000), at(5_010)));
            assert_eq!(renewed.state(at(5_000 + SURE_MS - 1)), State::Unknown);
            assert_eq!(renewed.state(at(5_000 + SURE_MS)), UNCONFIRMED);
        }
    }

    #[test]
    fn the_first_reason_of_a_loss_counts() {
        let released = Loss::Ended(EndReason::Released);
        let mut lifetime = lifetime();
        lifetime.lose(released, at(1));
        lifetime.lose(Loss::Forgotten, at(2));
        assert_eq!(lifetime.state(at(SURE_MS)), State::Lost(released));
        let mut over = self::lifetime();
        over.lose(released, at(SURE_MS));
        assert_eq!(over.state(at(SURE_MS)), UNCONFIRMED);
    }

    #[test]
    fn a_lease_without_renewals_is_held_until_it_ends() {
        let mut lifetime = lifetime().without_renewals();
        assert_eq!((lifetime.renew_at(), lifetime.renew_early_at()), (None, None));
        assert_eq!(lifetime.state(at(SURE_MS - 1)), State::Held);
        assert_eq!(lifetime.state(at(SURE_MS)), UNCONFIRMED);
    }

    #[test]
    fn a_lease_is_renewed_only_as_far_as_its_holder_keeps_it() {
        let mut lifetime = lifetime().at_most_until(at(12_000));
        assert!(lifetime.renew_at().is_some());
        assert!(lifetime.confirm(&sent_at(4_000), at(4_010)));
        assert_eq!(lifetime.renew_at(), None);
        assert_eq!(lifetime.state(at(11_999)), State::Held, "it needs no other renewal");
        assert_eq!(lifetime.state(at(12_000)), State::Lost(Loss::MaxHold));
    }

    #[test]
    fn a_lease_with_little_time_left_is_not_fresh() {
        assert!(lifetime().is_fresh(at(100)));
        assert!(!lifetime().is_fresh(at(5_000)));
        assert!(!lifetime().is_fresh(at(60_000)));
    }
}
