//! One task per client renews all its leases, with one call for all that are due.
//!
//! ```text
//!  leases ──due after 1/3, or after 1/6 along with another──▶ POST /v1/renew, up to 1,000 ids ──▶ each confirmed, or lost
//!                                                                │              ▲
//!                                                                └─ ambiguous ──┘ at once at the next node, then with pauses
//! ```
//! Leases that were acquired at different times are soon renewed together, because each call includes all leases that
//! are at least half as old. An attempt takes at most a quarter of the shortest time-to-live in it, so that another
//! node is asked in time. Calls run in parallel: one that hangs delays no other lease.
//!
//! Safety does not depend on this task: without it, leases become `Unknown` and then `Lost` by their clocks alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_wire::{BatchAnswer, BatchBody, BatchResult, EndReason, LeaseId, MAX_BATCH, RenewManyRequest};
use serde::de::Error as _;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::attempts::{ATTEMPT_TIMEOUT, Attempts};
use crate::clock::Moment;
use crate::cluster::Cluster;
use crate::held::{Held, MAX_SLEEP};
use crate::lifetime::Confirmation;
use crate::outcome::Outcome;
use crate::outlive::Least;
use crate::transport::{Request, Response};
use crate::{Error, Loss};

/// The leases that the client holds, and renews unless they are to end by themselves.
#[derive(Debug)]
pub(crate) struct Renewals {
    pub(crate) cluster: Arc<Cluster>,
    leases: Mutex<Leases>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Leases {
    by_id: BTreeMap<LeaseId, Renewed>,
    /// It ends with its runtime. The next lease starts another, on its own runtime.
    task: Option<JoinHandle<()>>,
    /// The task looks again then, and has nothing to do earlier.
    next_look: Option<Moment>,
    /// No lease is added any more.
    are_closed: bool,
}

#[derive(Debug)]
struct Renewed {
    held: Arc<Held>,
    /// It is not released earlier.
    least: Option<Least>,
    /// Whether a call for it is under way.
    in_flight: bool,
    /// A pause after the last call, which may have been in vain, or so slow that the lease is due again.
    not_before: Option<Moment>,
}

impl Renewed {
    fn is_ready(&self, now: Moment) -> bool {
        !self.in_flight && self.not_before.is_none_or(|at| now.has_reached(at))
    }

    fn look_at(&self) -> Option<Moment> {
        let due = self.held.lifetime().renew_at().filter(|_| !self.in_flight)?;
        Some(self.not_before.map_or(due, |not_before| not_before.max(due)))
    }
}

impl Renewals {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, leases: Mutex::default(), wake: Notify::new() }
    }

    /// Holds this lease from now on, and renews it, by a task on `runtime` unless there is one. Fails once the client is closed.
    pub(crate) fn add(
        self: &Arc<Self>,
        held: &Arc<Held>,
        least: Option<Least>,
        runtime: &Handle,
    ) -> Result<(), Error> {
        let mut leases = self.leases();
        if leases.are_closed {
            return Err(Error::Closed);
        }
        let renewed = Renewed { held: Arc::clone(held), least, in_flight: false, not_before: None };
        let look_at = renewed.look_at();
        leases.by_id.insert(held.lease_id, renewed);
        if !held.lifetime().renews() {
            return Ok(());
        }
        if leases.task.as_ref().is_none_or(JoinHandle::is_finished) {
            // The calls of a task end with it.
            leases.by_id.values_mut().for_each(|renewed| renewed.in_flight = false);
            leases.task = Some(runtime.spawn(Arc::clone(self).run()));
        } else if look_at
            .is_some_and(|at| leases.next_look.is_none_or(|next_look| !at.has_reached(next_look)))
        {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Holds this lease no longer. If it was the last, the task ends at its next look. Fails if the lease was released before: by the
    /// closed client, or by another handle.
    pub(crate) fn remove(&self, lease_id: LeaseId) -> Result<(), Error> {
        let mut leases = self.leases();
        match leases.by_id.remove(&lease_id) {
            Some(_) => Ok(()),
            None if leases.are_closed => Err(Error::Closed),
            None => Err(Error::Lost(Loss::Ended(EndReason::Released))),
        }
    }

    /// Ends the task, and returns the leases that are to be released, and how long they last at least. They are lost for all who wait
    /// for that.
    pub(crate) fn close(&self) -> Vec<(LeaseId, Option<Least>)> {
        let by_id = {
            let mut leases = self.leases();
            leases.are_closed = true;
            std::mem::take(&mut leases.by_id)
        };
        self.wake.notify_one();
        let release = |renewed: Renewed| (renewed.held.lease_id, renewed.held.leave(renewed.least));
        by_id.into_values().map(release).collect()
    }

    async fn run(self: Arc<Self>) {
        let mut calls = JoinSet::new();
        while let Some((due, next_look)) = self.look(Moment::now()) {
            for leases in due {
                calls.spawn(Arc::clone(&self).renew(leases));
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(next_look.since(Moment::now())) => {}
                Some(_) = calls.join_next() => {}
            }
        }
    }

    /// The calls to make now, and when to look again; `None` if no lease is left, and the task has to end.
    fn look(&self, now: Moment) -> Option<(Vec<Vec<Arc<Held>>>, Moment)> {
        let mut leases = self.leases();
        let Leases { by_id, task, next_look, .. } = &mut *leases;
        // Lost leases stay in the list, as their holders have not released them.
        let is_live = |held: &Held| held.lifetime().renews() && !held.is_lost();
        let mut live: Vec<_> = by_id.values_mut().filter(|renewed| is_live(&renewed.held)).collect();
        if live.is_empty() {
            *task = None;
            return None;
        }
        let is_past = |at: Option<Moment>| at.is_some_and(|at| now.has_reached(at));
        let mut ready: Vec<_> = live.iter_mut().filter(|renewed| renewed.is_ready(now)).collect();
        let mut due = Vec::new();
        if ready.iter().any(|renewed| is_past(renewed.held.lifetime().renew_at())) {
            ready.retain(|renewed| is_past(renewed.held.lifetime().renew_early_at()));
            due.extend(ready.iter().map(|renewed| Arc::clone(&renewed.held)));
            ready.iter_mut().for_each(|renewed| renewed.in_flight = true);
        }
        let calls = due.chunks(MAX_BATCH).map(<[_]>::to_vec).collect();
        let look_at = live.iter().filter_map(|renewed| renewed.look_at());
        let soonest = look_at.fold(now.after(MAX_SLEEP), Moment::min);
        *next_look = Some(soonest);
        Some((calls, soonest))
    }

    /// Renews these leases together, until an outcome is definite or none of them is left.
    async fn renew(self: Arc<Self>, mut held: Vec<Arc<Held>>) {
        let Some(ttl) = held.iter().map(|held| held.lifetime().ttl).min() else { return };
        let time = (ttl / 4).min(ATTEMPT_TIMEOUT);
        let mut attempts = Attempts::new(&self.cluster.nodes);
        attempts.longest_pause = time / 2;
        loop {
            held.retain(|held| self.leases().by_id.contains_key(&held.lease_id) && !held.is_lost());
            if held.is_empty() {
                return;
            }
            let lease_ids = held.iter().map(|held| held.lease_id).collect();
            let request = Request::post("/v1/renew", &RenewManyRequest { lease_ids });
            let read = |response: &Response| {
                let BatchAnswer { results } = response.json()?;
                match results.len() == held.len() {
                    true => Ok((response.sent, results)),
                    false => Err(serde_json::Error::custom("not as many results as leases")),
                }
            };
            match attempts.attempt(&request, time, read).await {
                Outcome::Done((sent, results)) => {
                    held.iter().zip(results).for_each(|(held, result)| learn(held, sent, result));
                    return self.finish(&held);
                }
                Outcome::Refused(problem) => {
                    tracing::warn!(leases = held.len(), problem = problem.detail, "a renewal was refused");
                    return self.finish(&held);
                }
                Outcome::Limited(problem, after) => {
                    tracing::debug!(leases = held.len(), problem = problem.detail, "a renewal has to wait");
                    sleep(after.min(attempts.longest_pause)).await;
                }
                Outcome::NotDone(why) | Outcome::Ambiguous(why) => {
                    tracing::debug!(leases = held.len(), why = %why, "a renewal failed, and is repeated at another node");
                }
            }
        }
    }

    fn finish(&self, held: &[Arc<Held>]) {
        let (mut leases, now) = (self.leases(), Moment::now());
        for held in held {
            if let Some(renewed) = leases.by_id.get_mut(&held.lease_id) {
                renewed.in_flight = false;
                renewed.not_before = Some(now.after((held.lifetime().ttl / 12).min(MAX_SLEEP)));
            }
        }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().expect("no code panics while it holds this lock")
    }
}

/// Confirms or ends one lease, as the result of its renewal says. After any other result it is as before: [`Renewals::finish`]
/// says when it is renewed next.
fn learn(held: &Held, sent: Moment, result: BatchResult) {
    match result.body {
        Some(BatchBody::Grant(grant)) => held.confirm(Confirmation { sent, grant: *grant }),
        Some(BatchBody::Mirrored(mirrored)) => held.confirm(Confirmation { sent, grant: mirrored.grant }),
        Some(BatchBody::Problem(problem)) => {
            if let Some(loss) = Loss::of(&problem) {
                held.lose(loss);
            }
        }
        Some(BatchBody::Waiting(_)) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfence_wire::{Grant, GrantState, Token};
    use tokio::runtime::Builder;

    use super::*;
    use crate::lifetime::Lifetime;
    use crate::transport::Nodes;

    const TTL: Duration = Duration::from_secs(12);

    fn held(sent: Moment) -> Arc<Held> {
        let grant = Grant {
            lease_id: LeaseId::random(),
            state: GrantState::Granted,
            token: Token(1),
            holder: None,
            ttl_ms: 12_000,
            expires_in_ms: Some(12_000),
            keys: Vec::new(),
        };
        let lifetime = Lifetime::new(&Confirmation { sent, grant: grant.clone() });
        Arc::new(Held::new(grant, lifetime))
    }

    /// One lease that was confirmed at `sent`, and no task.
    fn renewals(sent: Moment) -> (Arc<Renewals>, Arc<Held>) {
        let renewals = Renewals::new(Arc::new(Cluster::new(
            Nodes::parse(["http://127.0.0.1:1"], &crate::Tls::default()).unwrap(),
        )));
        let held = held(sent);
        let renewed = Renewed { held: Arc::clone(&held), least: None, in_flight: false, not_before: None };
        renewals.leases().by_id.insert(held.lease_id, renewed);
        (Arc::new(renewals), held)
    }

    /// How many leases each call would renew.
    fn calls(renewals: &Renewals, now: Moment) -> Vec<usize> {
        renewals.look(now).unwrap().0.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_renewal_that_ended_with_its_runtime_is_repeated_by_the_next_task() {
        let sent = Moment::now();
        let ((renewals, _), due) = (renewals(sent), sent.after(TTL / 2));
        assert_eq!(calls(&renewals, due), [1]);
        assert_eq!(calls(&renewals, due), [0; 0], "one at a time");
        let (ended, next) = [(); 2].map(|()| Builder::new_current_thread().build().unwrap()).into();
        renewals.leases().task = Some(ended.spawn(std::future::pending()));
        renewals.add(&held(sent), None, next.handle()).unwrap();
        assert_eq!(calls(&renewals, due), [1], "the first is under way");
        drop(ended);
        renewals.add(&held(sent), None, next.handle()).unwrap();
        assert_eq!(calls(&renewals, due), [3]);
    }

    #[test]
    fn a_pause_follows_each_renewal() {
        // So long ago that the lease is due again at once.
        let (renewals, held) = renewals(Moment::now().before(TTL / 2));
        assert_eq!(calls(&renewals, Moment::now()), [1]);
        let before = Moment::now();
        renewals.finish(&[held]);
        let (_, next_look) = renewals.look(before).unwrap();
        assert!(!before.has_reached(next_look), "the task has nothing to do until then");
        assert_eq!(calls(&renewals, before), [0; 0]);
        assert_eq!(calls(&renewals, Moment::now().after(TTL / 12)), [1]);
    }
}
