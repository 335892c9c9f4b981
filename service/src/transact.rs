//! Requests of several steps on a few keys: they run on a copy, and one command does what they came to.
//!
//! ```text
//!            ┌──────────── the keys have changed: wait until this node's table is as new as the cluster's ◀──┐
//!            ▼                                                                                              │
//!  keys ─▶ copy ─▶ run ─▶ changes something ─▶ one command, on condition that the keys are as copied ─▶ done │
//!                     └─▶ changes nothing ─▶ the copy was as new as the cluster's: answered; else ──────────┘
//! ```
//! The first copy may be old: what it leads to is done only if it is true. So what succeeds takes one command and no read, unless it
//! depends on how much time is left.

use std::sync::Arc;
use std::time::Duration;

use ringfence_access::KeyRight;
use ringfence_lease::{Command, Conditional, Found, KeyChange, Outcome, Refusal};
use ringfence_wire::{Grant, Holder, Key};
use tokio::time::Instant;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure;
use crate::mirror::tokens;
use crate::service::Service;
use crate::take_back::Unsent;
use crate::transaction::{Keys, Transaction};
use crate::usage::BYTES_OF_A_REQUEST;

/// How often a request is run. Each time but the first two, somebody else has changed one of its keys in the meantime.
const MOST_RUNS: usize = 32;
/// When a request is not run again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a request of several steps came to.
#[derive(Debug)]
pub struct Transacted<R> {
    /// What its last run returned.
    pub result: R,
    /// The grants of which the client has not learned yet.
    pub unsent: Option<Unsent>,
}

impl Service {
    /// Does what `run` makes of `keys`, in one step and for `caller`, whose leases show `holder`. It is run again when the keys have changed
    /// in the meantime. What it returns as an error is the answer, too, and then nothing is changed.
    ///
    /// # Errors
    /// The caller lacks the right on a key, its limits do not allow it, or there is no outcome. Then nothing was changed, or what was
    /// granted is taken back; what was ended may have ended.
    pub async fn transact<R>(
        self: &Arc<Self>,
        caller: &Caller,
        keys: &Keys,
        holder: Option<&Holder>,
        mut run: impl FnMut(&mut Transaction) -> Result<R, R>,
    ) -> Result<Transacted<R>, Failure> {
        let deadline = Instant::now() + TIMEOUT;
        // The request itself was counted.
        let (mut caller, mut now_ms, mut counted) = (caller.clone(), None, 1);
        for _ in 0..MOST_RUNS {
            caller.allow(KeyRight::Acquire, keys.iter())?;
            let mut transaction = self.copy(&caller, keys, now_ms);
            let result = run(&mut transaction);
            let is_timely = now_ms.is_some() || !transaction.reads_time();
            let (result, command) = match result {
                Ok(result) => (result, transaction.into_command(holder, || self.new_lease())),
                Err(result) => (result, None),
            };
            match command {
                Some(command) if is_timely => {
                    let requests = command.changes().len().max(1 + command.size_hint() / BYTES_OF_A_REQUEST);
                    self.count_more(&caller, requests, counted)?;
                    counted = 0;
                    if let Some(unsent) = self.change(&caller, command).await? {
                        return Ok(Transacted { result, unsent });
                    }
                }
                None if now_ms.is_some() => return Ok(Transacted { result, unsent: None }),
                _ => {}
            }
            if Instant::now() >= deadline {
                break;
            }
            now_ms = Some(self.handle.linearize().await?);
            caller.renew()?;
        }
        Err(Failure::Changed)
    }

    /// `keys` as this node has them. `now_ms`: the cluster time of the copy, if it is as new as the cluster's.
    fn copy(&self, caller: &Caller, keys: &Keys, now_ms: Option<u64>) -> Transaction {
        self.handle.view(|table| {
            let found = |key: &Key| {
                let mut found = table.found(caller.owner_name(), key, now_ms.unwrap_or(0));
                if let Found::Taken { expires_in_ms } = &mut found {
                    expires_in_ms.take_if(|_| !caller.sees_holders(std::iter::once(key)));
                }
                (key.clone(), found)
            };
            Transaction::new(keys.iter().map(found))
        })
    }

    /// Proposes the change, and waits for the mirror to have the leases of which it tells the client. `None`: a key has changed, and nothing
    /// was done.
    async fn change(
        self: &Arc<Self>,
        caller: &Caller,
        command: Conditional,
    ) -> Result<Option<Option<Unsent>>, Failure> {
        let acquired = command.changes().iter().filter_map(|change| match change {
            KeyChange::Acquire { lease_id, attachment, .. } => Some((*lease_id, *attachment)),
            _ => None,
        });
        // From before the proposal, so that it is dropped with this future.
        let unsent = Unsent::new(self, caller, acquired.collect());
        let kept = command.changes().iter().filter_map(|change| match change {
            KeyChange::Keep { key, token } | KeyChange::Expire { key, token, .. } => {
                Some((key.clone(), *token))
            }
            _ => None,
        });
        let mut told: Vec<_> = if self.mirror_timeout.is_some() { kept.collect() } else { Vec::new() };
        let outcome = self.propose(caller, Command::Conditional(Box::new(command))).await;
        let grants = match outcome.and_then(changed) {
            Ok(Some(grants)) => grants,
            not_done => {
                if not_done.as_ref().err().is_none_or(Failure::is_certain) {
                    unsent.into_iter().for_each(Unsent::sent);
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
        Ok(Some(unsent))
    }
}

/// What a change came to. `None`: a key has changed.
fn changed(outcome: Outcome) -> Result<Option<Vec<Grant>>, Failure> {
    match outcome {
        Outcome::Changed(grants) => Ok(Some(grants)),
        Outcome::Refused(Refusal::Changed { .. }) => Ok(None),
        Outcome::Refused(refusal) => Err(refusal.into()),
        // Not outcomes of a change.
        _ => Err(Failure::Indeterminate),
    }
}
