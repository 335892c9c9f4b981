//! How much of this node each principal uses, where the access rules limit it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ringfence_access::Principal;
use ringfence_raft::Lines;
use ringfence_wire::PrincipalName;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// The unit in which large requests count as several, and reads of keys against their own limit: they are work to parse and to write.
pub const BYTES_OF_A_REQUEST: usize = 4 << 10;
/// How long a request that was refused is held back at most.
const HELD_BACK: Duration = Duration::from_secs(1);

/// For how many seconds requests are refused at most because of those that were done.
const MOST_OWED_S: f64 = 10.0;

/// What the principals use, by their names. It outlives new rules.
#[derive(Default)]
pub(crate) struct Usages(Mutex<HashMap<Option<PrincipalName>, Usage>>);

#[derive(Default)]
struct Usage {
    requests: Option<Allowance>,
    /// In units of 4 KiB. Reads take nothing of what renewals need.
    reads: Option<Allowance>,
    watches: u32,
    /// Requests that were refused, and whose connections are not read on yet.
    held_back: u32,
    /// Lines of the audit log about what was refused.
    refusals: Lines,
}

/// How many requests may come, or how much may be read, at once. It grows to that of one second. One batch or read may leave it
/// negative, for later ones to make up for.
struct Allowance {
    left: f64,
    at: Instant,
}

/// Something that is counted. Dropping it ends that.
pub(crate) struct Counted {
    usages: Arc<Usages>,
    name: Option<PrincipalName>,
    count: fn(&mut Usage) -> &mut u32,
}

impl Usages {
    pub(crate) fn count_request(&self, principal: &Principal) -> Result<(), Failure> {
        let Some(limit) = principal.limits().requests_per_s else { return Ok(()) };
        match self.with(principal, |usage| usage.take(limit, Instant::now())) {
            true => Ok(()),
            false => Err(too_many(principal, limit)),
        }
    }

    /// Counts more requests, for a batch or a large body that came with one that was counted. They may arrive together, after their
    /// heads were counted one by one: the next one after a debt is refused, but not for its `own`, for which it was counted itself.
    pub(crate) fn count_more(&self, principal: &Principal, more: usize, own: usize) -> Result<(), Failure> {
        let Some(limit) = principal.limits().requests_per_s else { return Ok(()) };
        let is_allowed = |usage: &mut Usage| {
            let left = Allowance::refill(&mut usage.requests, limit, Instant::now());
            let is_allowed = *left + own as f64 >= 0.0;
            if is_allowed {
                *left -= more as f64;
            }
            is_allowed
        };
        if self.with(principal, is_allowed) { Ok(()) } else { Err(too_many(principal, limit)) }
    }

    /// Counts requests that were done already. All that arrived together are made up for later, but not for more than some seconds.
    pub(crate) fn count_done(&self, principal: &Principal, more: usize) {
        let Some(limit) = principal.limits().requests_per_s.filter(|_| more > 0) else { return };
        self.with(principal, |usage| {
            let left = Allowance::refill(&mut usage.requests, limit, Instant::now());
            owe(left, more as f64, MOST_OWED_S * f64::from(limit.get()));
        });
    }

    /// An error if other reads have used up what is allowed.
    pub(crate) fn check_reads(&self, principal: &Principal) -> Result<(), Failure> {
        let Some(limit) = principal.limits().requests_per_s else { return Ok(()) };
        if self.with(principal, |usage| *Allowance::refill(&mut usage.reads, limit, Instant::now()) >= 0.0) {
            return Ok(());
        }
        let detail = format!("{} may read {limit} times 4 KiB per second from each node", display(principal));
        Err(Failure::RateLimited(detail))
    }

    /// Counts what was read. Others may have written it, so what cannot be made up for in a second is forgiven.
    pub(crate) fn count_read(&self, principal: &Principal, bytes: usize) {
        let more = bytes / BYTES_OF_A_REQUEST;
        let Some(limit) = principal.limits().requests_per_s.filter(|_| more > 0) else { return };
        self.with(principal, |usage| {
            let left = Allowance::refill(&mut usage.reads, limit, Instant::now());
            owe(left, more as f64, f64::from(limit.get()));
        });
    }

    pub(crate) fn watch_place(self: &Arc<Self>, principal: &Principal) -> Result<Counted, Failure> {
        let limit = principal.limits().watches;
        let has_place = self.with(principal, |usage| {
            let has_place = limit.is_none_or(|limit| usage.watches < limit.get());
            usage.watches += u32::from(has_place);
            has_place
        });
        match (has_place, limit) {
            (false, Some(limit)) => Err(Failure::TooManyWatches(format!(
                "{} may have {limit} watches at once on each node",
                display(principal)
            ))),
            _ => Ok(self.counted(principal, |usage| &mut usage.watches)),
        }
    }

    /// Waits until a request that was refused would be allowed, behind those that wait already, but for at most a second. Refusing costs
    /// as much as answering, and meanwhile its connection is not read.
    pub(crate) async fn hold_back(self: &Arc<Self>, principal: &Principal) {
        let Some(limit) = principal.limits().requests_per_s else { return };
        let place = self.with(principal, |usage| {
            usage.held_back += 1;
            usage.held_back
        });
        let _counted = self.counted(principal, |usage| &mut usage.held_back);
        sleep((Duration::from_secs(1) * place / limit.get()).min(HELD_BACK)).await;
    }

    pub(crate) fn take_refusal_line(&self, principal: &Principal) -> Option<u64> {
        self.with(principal, |usage| usage.refusals.take())
    }

    fn counted(self: &Arc<Self>, principal: &Principal, count: fn(&mut Usage) -> &mut u32) -> Counted {
        Counted { usages: Arc::clone(self), name: principal.name().cloned(), count }
    }

    fn with<T>(&self, principal: &Principal, work: impl FnOnce(&mut Usage) -> T) -> T {
        work(self.lock().entry(principal.name().cloned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<PrincipalName>, Usage>> {
        self.0.lock().expect("nothing panics while the usages are locked")
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(usage) = self.usages.lock().get_mut(&self.name) {
            *(self.count)(usage) -= 1;
        }
    }
}

impl Usage {
    /// Takes one request, if there is one to take.
    fn take(&mut self, limit: NonZeroU32, now: Instant) -> bool {
        let left = Allowance::refill(&mut self.requests, limit, now);
        let is_allowed = *left >= 1.0;
        if is_allowed {
            *left -= 1.0;
        }
        is_allowed
    }
}

impl Allowance {
    /// What is left, with what was allowed since the last look.
    fn refill(allowance: &mut Option<Self>, limit: NonZeroU32, now: Instant) -> &mut f64 {
        let limit = f64::from(limit.get());
        let allowance = allowance.get_or_insert(Self { left: limit, at: now });
        let since = now.saturating_duration_since(allowance.at).as_secs_f64();
        allowance.left = (allowance.left + since * limit).min(limit);
        allowance.at = now;
        &mut allowance.left
    }
}

/// Takes `more` of what is `left`, but no more than leaves a debt of `most`. A larger debt stays.
fn owe(left: &mut f64, more: f64, most: f64) {
    *left = (*left - more).max(left.min(-most));
}

fn too_many(principal: &Principal, limit: NonZeroU32) -> Failure {
    let detail = format!("{} may send {limit} requests per second to each node", display(principal));
    Failure::RateLimited(detail)
}

fn display(principal: &Principal) -> &str {
    principal.name().map_or("anonymous", PrincipalName::as_str)
}

#[cfg(test)]
mod tests {
    use ringfence_access::{Proof, Rules};

    use super::*;

    /// Their heads all arrived while there was an allowance, and a thousand times as many operations were done.
    #[test]
    fn batches_that_arrive_together_are_done_up_to_the_limit() {
        let rules = Rules::parse("[anonymous]\nlimits = { requests-per-s = 3 }").unwrap();
        let principal = rules.identify(&Proof::default()).unwrap();
        let usages = Usages::default();
        assert!((0..3).all(|_| usages.count_request(principal).is_ok()));
        let done = (0..3).filter(|_| usages.count_more(principal, 999, 0).is_ok());
        assert_eq!(done.count(), 1);
        assert!(usages.count_more(principal, 1, 999).is_ok(), "it owes that itself");
    }

    /// A script that followed a large batch made up for it.
    #[tokio::test(start_paused = true)]
    async fn a_debt_stays_whatever_is_done_beside_it() {
        let rules = Rules::parse("[anonymous]\nlimits = { requests-per-s = 3 }").unwrap();
        let principal = rules.identify(&Proof::default()).unwrap();
        let usages = Usages::default();
        assert!(usages.count_more(principal, 303, 0).is_ok());
        usages.count_done(principal, 5);
        tokio::time::advance(Duration::from_secs(99)).await;
        assert!(usages.count_request(principal).is_err());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(usages.count_request(principal).is_ok());
        usages.count_done(principal, 1_000_000);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(usages.count_request(principal).is_ok(), "what was done is made up for in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_arrives_late_may_use_what_was_allowed_since_its_head() {
        let rules = Rules::parse("[anonymous]\nlimits = { requests-per-s = 3 }").unwrap();
        let principal = rules.identify(&Proof::default()).unwrap();
        let usages = Usages::default();
        assert!(usages.count_request(principal).is_ok() && usages.count_more(principal, 5, 0).is_ok());
        assert!(usages.count_more(principal, 1, 0).is_err());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(usages.count_more(principal, 1, 0).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_read_keeps_others_out_for_a_second_but_no_renewals() {
        let rules = Rules::parse("[anonymous]\nlimits = { requests-per-s = 3 }").unwrap();
        let principal = rules.identify(&Proof::default()).unwrap();
        let usages = Usages::default();
        usages.count_read(principal, 4 * BYTES_OF_A_REQUEST);
        assert!(usages.check_reads(principal).is_err());
        tokio::time::advance(Duration::from_millis(400)).await;
        assert!(usages.check_reads(principal).is_ok());
        usages.count_read(principal, 1_000_000 * BYTES_OF_A_REQUEST);
        tokio::time::advance(Duration::from_millis(900)).await;
        assert!(usages.check_reads(principal).is_err());
        assert!(usages.count_request(principal).is_ok());
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(usages.check_reads(principal).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn refused_requests_wait_one_behind_the_other_for_at_most_a_second() {
        let rules = Rules::parse("[anonymous]\nlimits = { requests-per-s = 10 }").unwrap();
        let principal = rules.identify(&Proof::default()).unwrap();
        let usages = Arc::<Usages>::default();
        let held_back = || async {
            let begun = Instant::now();
            usages.hold_back(principal).await;
            begun.elapsed().as_millis()
        };
        let waited = futures_util::future::join_all((0..12).map(|_| held_back())).await;
        assert_eq!(waited, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000, 1_000, 1_000]);
        assert_eq!(held_back().await, 100);
    }

    #[test]
    fn an_allowance_is_that_of_a_second_and_grows_evenly() {
        let (mut usage, limit) = (Usage::default(), NonZeroU32::new(10).unwrap());
        let start = Instant::now();
        let mut taken = |ms: u64, debt: f64| {
            let now = start + Duration::from_millis(ms);
            let taken = (0..100).take_while(|_| usage.take(limit, now)).count();
            usage.requests.as_mut().unwrap().left -= debt;
            taken
        };
        assert_eq!(taken(0, 0.0), 10);
        assert_eq!(taken(0, 0.0), 0);
        assert_eq!(taken(250, 0.0), 2);
        assert_eq!(taken(300, 0.0), 1, "half a request was left over");
        assert_eq!(taken(60_000, 20.0), 10, "it does not grow beyond a second");
        assert_eq!(taken(62_000, 0.0), 0, "a batch is made up for");
        assert_eq!(taken(62_500, 0.0), 5);
    }
}
