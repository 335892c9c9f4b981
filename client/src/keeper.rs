//! One task per client that renews all its leases, with one call for all that are due.
//!
//! ```text
//!  leases ──due at 1/3, or at 1/6 along with others──▶ POST /v1/renew, up to 1,000 ids ──▶ each lease: confirmed, or lost
//!     ▲                                                        │ no definite answer
//!     └────────────── at once at the next node, then with pauses ◀┘
//! ```
//! Leases that were acquired at different times are soon renewed together: whoever is due takes all along that are half
//! as old. A call is bounded by a quarter of the shortest time-to-live in it, so that another node is asked in time; and
//! each call is on its own, so that one that hangs delays no other lease.
//!
//! Nothing rests on this task: without it leases become unknown and lost, as their clocks say, and not a moment later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Method;
use ringfence_wire::{BatchAnswer, BatchBody, BatchResult, LeaseId, MAX_BATCH, RenewManyRequest};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::call::{attempt, json};
use crate::client::Shared;
use crate::exchange::Call;
use crate::fate::Fate;
use crate::held::{Due, Held, Renewing};
use crate::lifetime::Moment;
use crate::{Loss, State};

/// Sleeps are no longer than this, as the runtime's timers stand still while the machine sleeps.
const NAP: Duration = Duration::from_secs(1);

/// The leases that are renewed.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    kept: Mutex<Kept>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    leases: BTreeMap<LeaseId, Arc<Held>>,
    /// A runtime that ends takes its tasks along: the next lease starts the keeper anew, on its own runtime.
    task: Option<JoinHandle<()>>,
    /// When the task looks again; before that nothing has to be done.
    looks_at: Option<Moment>,
}

/// What is to be done now.
struct Plan {
    /// Renewals, of at most [`MAX_BATCH`] leases each.
    calls: Vec<Vec<Renewing>>,
    next: Moment,
}

impl Keeper {
    /// From now on this lease is renewed, by a task on `runtime`.
    pub(crate) fn keep(shared: &Arc<Shared>, held: &Arc<Held>, runtime: &Handle) {
        let keeper = &shared.keeper;
        let mut kept = keeper.kept();
        kept.leases.insert(held.lease_id, Arc::clone(held));
        if kept.task.as_ref().is_none_or(JoinHandle::is_finished) {
            kept.task = Some(runtime.spawn(run(Arc::clone(shared))));
        } else if kept.looks_at.is_none_or(|at| held.look_at() < at) {
            keeper.wake.notify_one();
        }
    }

    /// This one is renewed no longer.
    pub(crate) fn let_go(&self, lease_id: LeaseId) {
        let mut kept = self.kept();
        kept.leases.remove(&lease_id);
        if kept.leases.is_empty() {
            self.wake.notify_one();
        }
    }

    /// `None` when there is nothing more to do: then the task has ended for others.
    fn plan(&self, now: Moment) -> Option<Plan> {
        let mut kept = self.kept();
        kept.leases.retain(|_, held| !matches!(held.state(now), State::Lost(_)));
        if kept.leases.is_empty() {
            kept.task = None;
            return None;
        }
        let mut due: Vec<(Due, &Arc<Held>)> = kept
            .leases
            .values()
            .map(|held| (held.due(now), held))
            .filter(|(due, _)| *due != Due::No)
            .collect();
        if due.iter().all(|(due, _)| *due != Due::Now) {
            due.clear();
        }
        let begin = |due: &[(Due, &Arc<Held>)]| due.iter().map(|(_, held)| Renewing::begin(held)).collect();
        let calls = due.chunks(MAX_BATCH).map(begin).collect();
        let next = kept.leases.values().map(|held| held.look_at()).min().unwrap_or(now).min(now.after(NAP));
        kept.looks_at = Some(next);
        Some(Plan { calls, next })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing that panics is done while it is locked")
    }
}

async fn run(shared: Arc<Shared>) {
    let mut calls = JoinSet::new();
    let mut failed = 0;
    while let Some(plan) = shared.keeper.plan(Moment::now()) {
        for leases in plan.calls {
            calls.spawn(renew(Arc::clone(&shared), leases, failed));
        }
        tokio::select! {
            () = shared.keeper.wake.notified() => {}
            () = sleep(plan.next.since(Moment::now())) => {}
            Some(answered) = calls.join_next() => {
                failed = if matches!(answered, Ok(true)) { 0 } else { failed + 1 };
            }
        }
    }
}

/// One call for these leases; whether it was answered. `failed` calls before it were not.
async fn renew(shared: Arc<Shared>, leases: Vec<Renewing>, failed: usize) -> bool {
    let lease_ids = leases.iter().map(|held| held.lease_id).collect();
    let call = Call::new(Method::POST, "/v1/renew").with(&RenewManyRequest { lease_ids });
    let within = leases.iter().map(|held| held.patience()).min().unwrap_or(Duration::ZERO);
    let read = |answer: &_| {
        let BatchAnswer { results } = json(answer)?;
        if results.len() != leases.len() {
            return Err(serde::de::Error::custom("not as many results as leases"));
        }
        Ok((answer.sent, results))
    };
    let fate = attempt(&shared.endpoints, &call, within, true, read).await;
    let now = Moment::now();
    let pause = (failed + 1).is_multiple_of(shared.endpoints.count());
    match fate {
        Fate::Done((sent, results)) => {
            for (held, result) in leases.iter().zip(results) {
                learn(held, sent, result, now);
            }
            true
        }
        Fate::Refused(_) | Fate::NotDone(_) | Fate::Unknown(_) => {
            leases.iter().for_each(|held| held.renewal_failed(now, pause));
            false
        }
    }
}

/// What the answer says of one lease.
fn learn(held: &Held, sent: Moment, result: BatchResult, now: Moment) {
    match result.body {
        Some(BatchBody::Grant(grant)) => held.confirm(sent, *grant, now),
        Some(BatchBody::Mirrored(mirrored)) => held.confirm(sent, mirrored.grant, now),
        Some(BatchBody::Problem(problem)) => match Loss::of(&problem) {
            Some(loss) => held.lose(loss),
            None => held.renewal_failed(now, true),
        },
        Some(BatchBody::Waiting(_)) | None => held.renewal_failed(now, true),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Grant, GrantState, Token};

    use super::*;
    use crate::lifetime::Lifetime;

    const TTL: Duration = Duration::from_secs(12);

    fn grant() -> Grant {
        Grant {
            lease_id: LeaseId::random(),
            state: GrantState::Granted,
            token: Token(1),
            holder: None,
            ttl_ms: 12_000,
            expires_in_ms: Some(12_000),
            keys: Vec::new(),
        }
    }

    /// A lease that was granted at `sent`, and its keeper.
    fn kept(sent: Moment) -> (Keeper, Arc<Held>) {
        let (grant, keeper) = (grant(), Keeper::default());
        let held = Arc::new(Held::new(grant, Lifetime::new(TTL, sent, TTL)));
        keeper.kept().leases.insert(held.lease_id, Arc::clone(&held));
        (keeper, held)
    }

    fn calls(keeper: &Keeper, now: Moment) -> Vec<Vec<Renewing>> {
        keeper.plan(now).unwrap().calls
    }

    #[test]
    fn a_renewal_that_went_with_its_runtime_is_made_anew() {
        let sent = Moment::now();
        let ((keeper, _), due) = (kept(sent), sent.after(TTL / 2));
        let under_way = calls(&keeper, due);
        assert_eq!(under_way.len(), 1);
        assert!(calls(&keeper, due).is_empty(), "one at a time");
        drop(under_way);
        assert_eq!(calls(&keeper, due).len(), 1);
    }

    #[test]
    fn no_renewal_follows_the_last_without_a_pause() {
        let sent = Moment::now();
        let ((keeper, held), late) = (kept(sent), sent.after(TTL / 2));
        // The answer took so long that the next renewal is due.
        held.confirm(sent, held.grant(), late);
        assert!(calls(&keeper, late).is_empty());
        assert!(held.look_at() > late, "the keeper has to do nothing until then");
        assert_eq!(calls(&keeper, late.after(TTL / 12)).len(), 1);
    }
}
