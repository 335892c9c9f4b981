//! Requests of several steps on a few keys: they run on a copy, and one command does what they came to.
//!
//! ```text
//!            ┌──────────── the keys have changed: wait until this node's table is as new as the cluster's ◀──┐
//!            ▼                                                                                              │
//!  keys ─▶ copy ─▶ run ─▶ changes something ─▶ one command, on condition that the keys are as copied ─▶ done │
//!                     └─▶ changes nothing ─▶ the copy was as new as the cluster's: answered; else ──────────┘
//! ```
//! The first copy may be old: what it leads to is done only if it is true. So what succeeds takes one command and no read.

use std::sync::Arc;
use std::time::Duration;

use ringfence_access::KeyRight;
use ringfence_lease::{Attachment, Command, Conditional, KeyChange, Outcome, Owner, Refusal};
use ringfence_wire::{Grant, Key, LeaseId};
use tokio::time::Instant;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure;
use crate::service::Service;
use crate::transaction::Transaction;

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

/// Grants of which the client has not learned, or may never learn. If this is dropped, they are taken back.
///
/// A client that is answered with an error, or not at all, does not come back to ask what became of its lease, as one does that chose its
/// id. So unlike an acquire by id, this one is taken back after an error, too, and until that has an outcome or their time is over.
#[must_use = "grants that are not sent are taken back"]
pub struct Unsent {
    service: Arc<Service>,
    by: Option<Owner>,
    grants: Vec<(LeaseId, Attachment)>,
    /// When the last of them ends by itself.
    until: Instant,
}

impl Unsent {
    /// The client has been sent the response.
    pub fn sent(mut self) {
        self.grants.clear();
    }
}

impl std::fmt::Debug for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unsent").field(&self.grants).finish()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if !self.grants.is_empty() {
            let grants = std::mem::take(&mut self.grants);
            self.service.handle.detach_later(self.by.take(), grants, self.until);
        }
    }
}

impl Service {
    /// Does what `run` makes of `keys`, in one step and for `caller`. It is run again when the keys have changed in the meantime. What it
    /// returns as an error is the answer, too, and then nothing is changed.
    ///
    /// # Errors
    /// The caller lacks the right on a key, its limits do not allow it, or there is no outcome. Then nothing was changed, or what was
    /// granted is taken back; what was ended may have ended.
    pub async fn transact<R>(
        self: &Arc<Self>,
        caller: &Caller,
        keys: &[Key],
        mut run: impl FnMut(&mut Transaction) -> Result<R, R>,
    ) -> Result<Transacted<R>, Failure> {
        assert!(keys.len() <= Transaction::MAX_KEYS, "too many keys in a request of several steps");
        let deadline = Instant::now() + TIMEOUT;
        let mut caller = caller.clone();
        let mut now_ms = None;
        for _ in 0..MOST_RUNS {
            caller.allow(KeyRight::Acquire, keys.iter())?;
            let mut transaction = self.copy(&caller, keys, now_ms);
            let (result, command) = match run(&mut transaction) {
                Ok(result) => (result, transaction.into_command(None, || self.new_lease())),
                Err(result) => (result, None),
            };
            match command {
                Some(command) => {
                    if let Some(unsent) = self.change(&caller, command).await? {
                        return Ok(Transacted { result, unsent });
                    }
                }
                None if now_ms.is_some() => return Ok(Transacted { result, unsent: None }),
                None => {}
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
    fn copy(&self, caller: &Caller, keys: &[Key], now_ms: Option<u64>) -> Transaction {
        self.handle.view(|table| {
            let found = |key: &Key| (key.clone(), table.found(caller.owner_name(), key, now_ms.unwrap_or(0)));
            Transaction::new(keys.iter().map(found))
        })
    }

    /// Proposes the change, and waits for the mirror to have its grants. `None`: a key has changed, and nothing was done.
    async fn change(
        self: &Arc<Self>,
        caller: &Caller,
        command: Conditional,
    ) -> Result<Option<Option<Unsent>>, Failure> {
        // From before the proposal, so that it is dropped with this future.
        let unsent = self.unsent(caller, &command);
        let result = self.propose(caller, Command::Conditional(Box::new(command))).await;
        let grants = match result.and_then(changed) {
            Ok(Some(grants)) => grants,
            other => {
                if let (Some(unsent), true) = (unsent, other.as_ref().err().is_none_or(Failure::is_certain)) {
                    unsent.sent();
                }
                return other.map(|_| None);
            }
        };
        if let Some(within) = self.mirror_timeout
            && !self.mirrored(grants.iter(), within).await
        {
            return Err(Failure::NotMirrored);
        }
        measure::transacted(grants.len());
        Ok(Some(unsent))
    }

    /// What takes back the grants of `command`, if it makes any.
    fn unsent(self: &Arc<Self>, caller: &Caller, command: &Conditional) -> Option<Unsent> {
        let (mut grants, mut lasts) = (Vec::new(), Duration::ZERO);
        for change in command.changes() {
            if let KeyChange::Acquire { lease_id, attachment, ttl, .. } = change {
                grants.push((*lease_id, *attachment));
                lasts = lasts.max(Duration::from_millis(ttl.ms().into()));
            }
        }
        let until = Instant::now() + TIMEOUT + lasts;
        (!grants.is_empty()).then(|| Unsent { service: Arc::clone(self), by: caller.owner(), grants, until })
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
