//! Requests of several steps on a few keys. They run on a copy of the keys, and one command makes their changes.
//!
//! ```text
//!            ┌──────────── the keys have changed: wait until this node's table is as new as the cluster's ◀──┐
//!            ▼                                                                                              │
//!  keys ─▶ copy ─▶ run ─▶ changes something ─▶ one command, on condition that the keys are as copied ─▶ done │
//!                     └─▶ changes nothing ─▶ the copy was as new as the cluster's: answered; else ──────────┘
//! ```
//! The first copy may be old. Its conditions keep the command from changing anything then. So a request that changes keys takes one command
//! and no linearizable read, unless it depends on how much time is left.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use ringfence_access::KeyRight;
use ringfence_lease::{Command, Conditional, Found, KeyChange, Outcome, Refusal};
use ringfence_wire::{Grant, Holder, Key, LeaseId};
use tokio::time::Instant;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure;
use crate::mirror::tokens;
use crate::service::Service;
use crate::take_back::Unsent;
use crate::transaction::{Keys, Transaction};
use crate::usage::BYTES_OF_A_REQUEST;
use crate::visit::{Report, Visit};

/// How often a request may run. It runs a third time only if another client has changed one of its keys, and so for each later time.
const MOST_RUNS: usize = 32;
/// When a request is not run again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a request of several steps.
#[derive(Debug)]
#[must_use = "grants that are not sent are taken back"]
pub struct Transacted<R> {
    result: R,
    unsent: Option<Unsent>,
    /// When a lease may have ended that was acquired, or whose time was set or read.
    until: Option<Instant>,
}

impl<R> Transacted<R> {
    /// The leases that were acquired.
    pub fn acquired(&self) -> impl Iterator<Item = LeaseId> {
        self.unsent.iter().flat_map(Unsent::leases)
    }

    /// What the last run returned, and the grants that the client does not know yet. Call it just before the response is sent: the client
    /// counts from there.
    ///
    /// # Errors
    /// [`Failure::Indeterminate`]: a lease may have ended meanwhile. The grants are taken back.
    pub fn in_time(self) -> Result<(R, Option<Unsent>), Failure> {
        let Self { result, unsent, until } = self;
        match until {
            Some(until) if Instant::now() >= until => Err(Failure::Indeterminate),
            _ => Ok((result, unsent)),
        }
    }
}

impl<R, E> Transacted<Result<R, E>> {
    /// The error, if the run returned one: nothing was changed then.
    pub fn transpose(self) -> Result<Transacted<R>, E> {
        let Self { result, unsent, until } = self;
        result.map(|result| Transacted { result, unsent, until })
    }
}

/// What a request does with a copy of its keys.
pub trait Steps<R, P: Report>: Send {
    /// Reads and changes the copy. It may let others go on meanwhile, and adds to the cost of the visit.
    ///
    /// # Errors
    /// With an error, nothing is changed.
    fn run(
        &mut self,
        keys: &mut Transaction,
        visit: &mut Visit<P>,
    ) -> impl Future<Output = Result<R, R>> + Send;
}

/// Steps without a pause for others.
impl<R: Send, P: Report, F: FnMut(&mut Transaction) -> Result<R, R> + Send> Steps<R, P> for F {
    fn run(&mut self, keys: &mut Transaction, _: &mut Visit<P>) -> impl Future<Output = Result<R, R>> + Send {
        ready(self(keys))
    }
}

impl Service {
    /// Runs `steps` on a copy of `keys`, and makes its changes in one step. New leases show `holder`. If the keys have changed meanwhile,
    /// they run again. If they return an error, that is the result, and nothing is changed.
    ///
    /// # Errors
    /// The caller lacks the right on a key, its limits do not allow the request, or the cluster cannot decide it: nothing was changed. Or
    /// the outcome is unknown, or the mirror is late: then grants are taken back, but leases that `steps` ended may have ended.
    pub async fn transact<R, P: Report>(
        self: &Arc<Self>,
        visit: &mut Visit<P>,
        keys: &Keys,
        holder: Option<&Holder>,
        steps: &mut impl Steps<R, P>,
    ) -> Result<Transacted<R>, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        // The first change was counted with the request.
        let (mut read_ms, mut counted) = (None, 1);
        let mut asked = Instant::now();
        for _ in 0..MOST_RUNS {
            visit.renew()?;
            self.check_blocked()?;
            visit.caller().allow(KeyRight::Acquire, keys.iter())?;
            let copied = Instant::now();
            let now_ms = read_ms.map(|ms| ms + copied.duration_since(asked).as_millis() as u64);
            let mut transaction = self.copy(visit.caller(), keys, now_ms)?;
            let result = steps.run(&mut transaction, visit).await;
            let is_timely = now_ms.is_some() || !transaction.reads_time();
            let until = transaction.ends_in().map(|left| copied + left);
            let (result, command) = match result {
                Ok(result) => (result, transaction.into_command(holder, || self.new_lease())),
                Err(result) => (result, None),
            };
            match command {
                Some(command) if is_timely => {
                    // The steps may have waited for turns.
                    if Instant::now() >= deadline {
                        return Err(Failure::NoLeader);
                    }
                    if visit.renew()? {
                        visit.caller().allow(KeyRight::Acquire, keys.iter())?;
                    }
                    let requests = command.changes().len().max(1 + command.size_hint() / BYTES_OF_A_REQUEST);
                    visit.add(requests - std::mem::take(&mut counted))?;
                    if let Some(unsent) = self.change(visit.caller(), command).await? {
                        return Ok(Transacted { result, unsent, until });
                    }
                }
                None if now_ms.is_some() => return Ok(Transacted { result, unsent: None, until }),
                _ => {}
            }
            if Instant::now() >= deadline {
                break;
            }
            asked = Instant::now();
            read_ms = Some(self.handle.linearize().await?);
        }
        Err(Failure::Changed)
    }

    /// A copy of `keys` as this node has them. `now_ms`: cluster time at most, if a linearizable read has found it.
    fn copy(&self, caller: &Caller, keys: &Keys, now_ms: Option<u64>) -> Result<Transaction, Failure> {
        let copied = self.handle.try_view(|table| {
            let found = |key: &Key| {
                let mut found = table.found(caller.owner_name(), key, now_ms.unwrap_or(0));
                if let Found::Taken { expires_in_ms } = &mut found {
                    expires_in_ms.take_if(|_| !caller.sees_holders(std::iter::once(key)));
                }
                (key.clone(), found)
            };
            Transaction::new(keys.iter().map(found))
        });
        let mut copied = copied?;
        copied.tell(|lease_id| self.is_told(lease_id));
        Ok(copied)
    }

    /// Proposes the change, and waits until the mirror has the leases that the response tells. `None`: a key has changed, and nothing was done.
    async fn change(
        self: &Arc<Self>,
        caller: &Caller,
        command: Conditional,
    ) -> Result<Option<Option<Unsent>>, Failure> {
        let mut unsent = Unsent::repeating(self, caller);
        let kept = command.changes().iter().filter_map(|change| match change {
            KeyChange::Keep { key, token } | KeyChange::Expire { key, token, .. } => {
                Some((key.clone(), *token))
            }
            _ => None,
        });
        let mut told: Vec<_> = if self.mirror_timeout.is_some() { kept.collect() } else { Vec::new() };
        let outcome =
            self.propose_acquire(caller, Command::Conditional(Box::new(command)), &mut unsent).await;
        let grants = match outcome.and_then(changed) {
            Ok(Some(grants)) => grants,
            not_done => {
                if not_done.as_ref().err().is_none_or(Failure::is_certain) {
                    unsent.sent();
                }
                return not_done.map(|_| None);
            }
        };
        if let Some(within) = self.mirror_timeout {
            told.extend(tokens(&grants));
            if !self.mirrored(told, within).await {
                return Err(Failure::NotMirrored);
            }
        }
        measure::transacted(grants.len());
        Ok(Some(unsent.if_any()))
    }
}

/// The grants of a change. `None`: a key has changed.
fn changed(outcome: Outcome) -> Result<Option<Vec<Grant>>, Failure> {
    match outcome {
        Outcome::Changed(grants) => Ok(Some(grants)),
        Outcome::Refused(Refusal::Changed { .. }) => Ok(None),
        Outcome::Refused(refusal) => Err(refusal.into()),
        // A conditional has no other outcome.
        _ => Err(Failure::Indeterminate),
    }
}
