//! How much of this node each principal uses, where the access rules limit it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_access::Principal;
use ringfence_wire::{PrincipalName, ProblemKind};
use tokio::time::Instant;

use crate::problems::Failed;

/// What the principals with limits use, by their names. It outlives new rules.
#[derive(Default)]
pub(crate) struct Usages(Mutex<HashMap<Option<PrincipalName>, Usage>>);

#[derive(Default)]
struct Usage {
    requests: Option<Allowance>,
    watches: u32,
}

/// How many requests may come at once. It grows to those of one second. A batch may leave it negative, for later requests to
/// make up for.
struct Allowance {
    left: f64,
    at: Instant,
}

/// A watch that is counted. Dropping it ends that.
pub(crate) struct WatchPlace {
    usages: Arc<Usages>,
    name: Option<PrincipalName>,
}

impl Usages {
    pub(super) fn count_request(&self, principal: &Principal) -> Result<(), Failed> {
        let Some(limit) = principal.limits().requests_per_s else { return Ok(()) };
        match self.with(principal, |usage| usage.take(limit, Instant::now())) {
            true => Ok(()),
            false => Err(Failed::new(
                ProblemKind::RateLimited,
                format!("{} may send {limit} requests per second to each node", display(principal)),
            )),
        }
    }

    pub(super) fn count_more(&self, principal: &Principal, more: usize) {
        if principal.limits().requests_per_s.is_some() {
            self.with(principal, |usage| {
                if let Some(requests) = &mut usage.requests {
                    requests.left -= more as f64;
                }
            });
        }
    }

    pub(super) fn watch_place(self: &Arc<Self>, principal: &Principal) -> Result<Option<WatchPlace>, Failed> {
        let Some(limit) = principal.limits().watches else { return Ok(None) };
        let has_place = self.with(principal, |usage| {
            let has_place = usage.watches < limit.get();
            usage.watches += u32::from(has_place);
            has_place
        });
        match has_place {
            true => {
                let (usages, name) = (Arc::clone(self), principal.name().cloned());
                Ok(Some(WatchPlace { usages, name }))
            }
            false => Err(Failed::new(
                ProblemKind::Overloaded,
                format!("{} may have {limit} watches at once on each node", display(principal)),
            )),
        }
    }

    fn with<T>(&self, principal: &Principal, work: impl FnOnce(&mut Usage) -> T) -> T {
        work(self.lock().entry(principal.name().cloned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<PrincipalName>, Usage>> {
        self.0.lock().expect("nothing panics while the usages are locked")
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        if let Some(usage) = self.usages.lock().get_mut(&self.name) {
            usage.watches -= 1;
        }
    }
}

impl Usage {
    /// Takes one request, if there is one to take.
    fn take(&mut self, limit: NonZeroU32, now: Instant) -> bool {
        let limit = f64::from(limit.get());
        let requests = self.requests.get_or_insert(Allowance { left: limit, at: now });
        let since = now.saturating_duration_since(requests.at).as_secs_f64();
        requests.left = (requests.left + since * limit).min(limit);
        requests.at = now;
        let is_allowed = requests.left >= 1.0;
        if is_allowed {
            requests.left -= 1.0;
        }
        is_allowed
    }
}

fn display(principal: &Principal) -> &str {
    principal.name().map_or("anonymous", PrincipalName::as_str)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
