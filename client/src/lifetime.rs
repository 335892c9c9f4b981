//! Until when a lease surely lives, seen from its holder.
//!
//! The cluster says that a lease lives `expires_in_ms` from when the request was *sent*, for it cannot have seen it any
//! earlier. The holder counts on a clock that goes on while the machine sleeps (`CLOCK_BOOTTIME`), and allows for what
//! clocks differ by:
//!
//! ```text
//!  sent         due                doubtful          until    sent + expires_in
//!   |------------|------------------|------------------|---------|
//!   :    1/3     :       1/3        :       1/3        : allowance
//!        Held           Held              Unknown        Lost, for good
//! ```
//! The allowance is 0.2 % and 5 ms. Linux slews a clock by at most 0.05 %, and quartz is off by some 0.01 %: two clocks
//! that are both wrong, in opposite directions, differ by 0.12 %. The 5 ms are for timers, which fire late.
//!
//! Every confirmation is a bound that holds for itself, so the latest counts whatever the order of answers. An answer that
//! comes after `until` cannot bring the lease back: whoever looked in between was told that it is lost.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::call::ATTEMPT;

/// What is taken off for clocks that run at different speeds: one part in so many.
const DRIFT: u32 = 500;
/// What is taken off for timers.
const LATE: Duration = Duration::from_millis(5);

/// A reading of the clock that runs while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    /// How long from `earlier` to this; zero if it is not earlier.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

/// How a lease stands as far as time can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Held,
    Doubtful,
    Over,
}

/// Until when a lease surely lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    ttl: Duration,
    /// As confirmed.
    until: Moment,
    /// Where the holder wants no more of it.
    hold_until: Option<Moment>,
    renews: bool,
}

impl Lifetime {
    /// Of a lease of which the cluster said, to a request sent at `sent`, that it lives `expires_in`.
    pub(crate) fn new(ttl: Duration, sent: Moment, expires_in: Duration) -> Self {
        Self { ttl, until: surely_until(sent, expires_in), hold_until: None, renews: true }
    }

    /// One that nobody renews: it is in no doubt until it ends.
    pub(crate) fn without_renewals(self) -> Self {
        Self { renews: false, ..self }
    }

    /// One that its holder gives up at `moment`, however long it would live.
    pub(crate) fn at_most_until(self, moment: Moment) -> Self {
        Self { hold_until: Some(moment), ..self }
    }

    /// The cluster said, to a request sent at `sent`, that it lives `expires_in`, and `ttl` from each renewal: somebody may
    /// have changed that by its id. Whether that was in time.
    pub(crate) fn confirm(&mut self, sent: Moment, ttl: Duration, expires_in: Duration, now: Moment) -> bool {
        let in_time = self.standing(now) != Standing::Over;
        if in_time {
            self.ttl = ttl;
            self.until = self.until.max(surely_until(sent, expires_in));
        }
        in_time
    }

    /// How long it surely lives on.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.end().since(now)
    }

    /// Whether it lives at least half as long again as it takes until it would be in doubt, so that a holder may begin.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.until.since(now) >= self.ttl / 2
    }

    pub(crate) fn standing(&self, now: Moment) -> Standing {
        if now >= self.end() {
            Standing::Over
        } else if self.renews && !self.is_renewed_enough() && now >= self.until.before(self.ttl / 3) {
            Standing::Doubtful
        } else {
            Standing::Held
        }
    }

    /// Whether it ends, or has ended, because its holder wants no more of it.
    pub(crate) fn ends_by_choice(&self) -> bool {
        self.is_renewed_enough()
    }

    /// When it is to be renewed, a third of its time after the last confirmed request; `None` where it is not.
    pub(crate) fn renew_at(&self) -> Option<Moment> {
        (self.renews && !self.is_renewed_enough()).then(|| self.until.before(self.ttl / 3 * 2))
    }

    /// From when on it is renewed along with another that is due. A sixth of its time: so leases of one time-to-live
    /// are soon all renewed at once, whenever each was acquired.
    pub(crate) fn renew_along_at(&self) -> Option<Moment> {
        self.renew_at().map(|due| due.before(self.ttl / 6))
    }

    /// How soon after a confirmation it is renewed at the earliest, whatever that has confirmed.
    pub(crate) fn pause(&self) -> Duration {
        self.ttl / 12
    }

    /// How long one attempt to renew may take: a quarter of its time, so that there are more than two.
    pub(crate) fn patience(&self) -> Duration {
        (self.ttl / 4).min(ATTEMPT)
    }

    /// When it ends, as far as its holder goes.
    pub(crate) fn end(&self) -> Moment {
        self.hold_until.map_or(self.until, |hold_until| hold_until.min(self.until))
    }

    fn is_renewed_enough(&self) -> bool {
        self.hold_until.is_some_and(|hold_until| hold_until <= self.until)
    }
}

fn surely_until(sent: Moment, expires_in: Duration) -> Moment {
    sent.after(expires_in.saturating_sub(expires_in / DRIFT + LATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(9_000);
    /// 9 s less 0.2 % and 5 ms.
    const SURE_MS: u64 = 9_000 - 18 - 5;

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(1_000_000 + ms))
    }

    fn sent_at(ms: u64) -> Lifetime {
        Lifetime::new(TTL, at(ms), TTL)
    }

    #[test]
    fn time_is_counted_from_when_the_request_was_sent_less_what_clocks_differ_by() {
        let lifetime = sent_at(0);
        assert_eq!(lifetime.remaining(at(0)), Duration::from_millis(SURE_MS));
        assert_eq!(lifetime.remaining(at(7_000)), Duration::from_millis(SURE_MS - 7_000));
        assert_eq!(lifetime.remaining(at(SURE_MS + 1)), Duration::ZERO);
        // What is left of a grant that stood already is less than its time-to-live.
        let standing = Lifetime::new(TTL, at(0), Duration::from_millis(1_000));
        assert_eq!(standing.remaining(at(0)), Duration::from_millis(1_000 - 2 - 5));
        assert_eq!(Lifetime::new(TTL, at(0), Duration::from_millis(3)).remaining(at(0)), Duration::ZERO);
    }

    #[test]
    fn a_lease_is_held_then_doubtful_then_over() {
        let lifetime = sent_at(0);
        assert_eq!(lifetime.renew_at(), Some(at(SURE_MS - 6_000)));
        assert_eq!(lifetime.renew_along_at(), Some(at(SURE_MS - 7_500)));
        for (ms, standing) in [
            (0, Standing::Held),
            (SURE_MS - 3_001, Standing::Held),
            (SURE_MS - 3_000, Standing::Doubtful),
            (SURE_MS - 1, Standing::Doubtful),
            (SURE_MS, Standing::Over),
            (1_000_000, Standing::Over),
        ] {
            assert_eq!(lifetime.standing(at(ms)), standing, "after {ms} ms");
        }
    }

    #[test]
    fn a_confirmation_counts_from_its_own_request_and_the_latest_wins() {
        let mut lifetime = sent_at(0);
        assert!(lifetime.confirm(at(7_000), TTL, TTL, at(8_000)));
        assert_eq!(lifetime.standing(at(8_000)), Standing::Held);
        assert_eq!(lifetime.remaining(at(8_000)), Duration::from_millis(SURE_MS - 1_000));
        assert!(lifetime.confirm(at(3_000), TTL, TTL, at(8_001)), "an older one that comes late");
        assert_eq!(lifetime.remaining(at(8_000)), Duration::from_millis(SURE_MS - 1_000));
    }

    /// The old one counted on: what was left of the new was always too little, and renewals followed each other.
    #[test]
    fn a_lease_whose_time_to_live_was_changed_by_its_id_is_renewed_by_the_new_one() {
        let mut lifetime = sent_at(0);
        let shorter = TTL / 3;
        assert!(lifetime.confirm(at(3_000), shorter, shorter, at(3_010)));
        assert_eq!(lifetime.renew_at(), Some(at(SURE_MS - 2_000)), "it lives on as long as it did");
        assert!(lifetime.confirm(at(7_000), shorter, shorter, at(7_010)));
        assert_eq!(lifetime.renew_at(), Some(at(7_000 + 3_000 - 6 - 5 - 2_000)));
    }

    #[test]
    fn a_confirmation_that_comes_too_late_brings_nothing_back() {
        let mut lifetime = sent_at(0);
        assert!(!lifetime.confirm(at(SURE_MS - 10), TTL, TTL, at(SURE_MS)));
        assert_eq!(lifetime.standing(at(SURE_MS)), Standing::Over);
        let mut in_time = sent_at(0);
        assert!(in_time.confirm(at(SURE_MS - 10), TTL, TTL, at(SURE_MS - 1)));
        assert_eq!(in_time.standing(at(SURE_MS)), Standing::Held);
    }

    #[test]
    fn what_nobody_renews_is_in_no_doubt() {
        let lifetime = sent_at(0).without_renewals();
        assert_eq!((lifetime.renew_at(), lifetime.renew_along_at()), (None, None));
        assert_eq!(lifetime.standing(at(SURE_MS - 1)), Standing::Held);
        assert_eq!(lifetime.standing(at(SURE_MS)), Standing::Over);
    }

    #[test]
    fn what_is_given_up_anyway_is_renewed_only_as_far_as_that() {
        let mut lifetime = sent_at(0).at_most_until(at(12_000));
        assert!(lifetime.renew_at().is_some() && !lifetime.ends_by_choice());
        assert!(lifetime.confirm(at(4_000), TTL, TTL, at(4_010)));
        assert_eq!(lifetime.renew_at(), None);
        assert_eq!(lifetime.standing(at(11_999)), Standing::Held, "it needs no other renewal");
        assert_eq!(lifetime.standing(at(12_000)), Standing::Over);
        assert!(lifetime.ends_by_choice());
    }

    #[test]
    fn only_what_lives_for_long_enough_is_fresh() {
        assert!(sent_at(0).is_fresh(at(100)));
        assert!(!sent_at(0).is_fresh(at(5_000)));
        assert!(!sent_at(0).is_fresh(at(60_000)));
    }
}
