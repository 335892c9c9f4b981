//! One command of a caller: what it proposes, and what its outcome means.

use ringfence_lease::{self as lease, Command, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{Grant, Key, LeaseId, Token, Ttl};

use crate::caller::Caller;
use crate::failure::Failure;
use crate::measure;
use crate::rights::Allowed;
use crate::service::Service;
use crate::take_back::Unsent;

impl Service {
    /// Extends a lease to its full time-to-live from now: its own, or `ttl`.
    ///
    /// # Errors
    /// It is not there, or not granted, the caller lacks the right on its keys, or there is no outcome.
    pub async fn renew(
        &self,
        caller: &Caller,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Box<Grant>, Failure> {
        let outcome = self.propose(caller, Command::Renew { lease_id, ttl }).await;
        let renewed = outcome.and_then(renewed);
        measure::renewed(renewed.as_ref().err());
        renewed
    }

    /// Ends a lease, or leaves the queue. An id that is not known yet is remembered, so that a late acquire grants nothing.
    ///
    /// # Errors
    /// It has ended otherwise, the caller lacks the right on its keys, or there is no outcome.
    pub async fn release(&self, caller: &Caller, lease_id: LeaseId) -> Result<(), Failure> {
        let outcome = self.propose(caller, Command::Release { lease_id }).await?;
        measure::released();
        ended(outcome)
    }

    /// Ends the lease that holds `key` with `token`, on behalf of an operator.
    ///
    /// # Errors
    /// There is none, the caller lacks the right on its keys, or there is no outcome.
    pub async fn revoke(&self, caller: &Caller, key: Key, token: Token) -> Result<(), Failure> {
        self.propose(caller, Command::Revoke { key, token }).await.and_then(ended)
    }

    /// The outcome of one command of `caller`.
    pub(crate) async fn propose(&self, caller: &Caller, command: Command) -> Result<Outcome, Failure> {
        let allowed = self.allow(caller, command).await?;
        one(self.propose_all(caller, allowed, &mut false).await)
    }

    /// As [`Service::propose`], of a command that acquires leases.
    pub(crate) async fn propose_acquire(
        &self,
        caller: &Caller,
        command: Command,
        unsent: &mut Unsent,
    ) -> Result<Outcome, Failure> {
        let allowed = self.allow(caller, command).await?;
        one(unsent.propose(caller, allowed).await)
    }

    async fn allow(&self, caller: &Caller, command: Command) -> Result<Vec<Allowed<Command>>, Failure> {
        self.check_blocked()?;
        let allowed = caller.allow_commands(&self.handle, vec![command]).await?;
        allowed.into_iter().collect()
    }

    /// The outcomes of commands of `caller`, in their order. `is_proposed` says at every moment whether they may have come, or may come yet,
    /// into the log.
    pub(crate) async fn propose_all(
        &self,
        caller: &Caller,
        commands: Vec<Allowed<Command>>,
        is_proposed: &mut bool,
    ) -> Result<Vec<Outcome>, Unanswered> {
        let commands = commands.into_iter().map(Allowed::into_inner).collect();
        let request = lease::Request { by: caller.owner(), commands };
        #[expect(clippy::disallowed_methods, reason = "the commands are allowed")]
        self.handle.propose_of(caller.asker(), request, is_proposed).await
    }
}

fn one(outcomes: Result<Vec<Outcome>, Unanswered>) -> Result<Outcome, Failure> {
    Ok(outcomes?.pop().expect("one outcome per command"))
}

/// What a renewal came to.
pub(crate) fn renewed(outcome: Outcome) -> Result<Box<Grant>, Failure> {
    match outcome {
        Outcome::Standing(grant) => Ok(grant),
        Outcome::Refused(refusal) => Err(refusal.into()),
        // Not outcomes of a renewal.
        Outcome::Granted(_)
        | Outcome::Waiting(_)
        | Outcome::Kept(_)
        | Outcome::Done
        | Outcome::Changed(_) => Err(Failure::Indeterminate),
    }
}

/// What a release or revocation came to. If the lease ended otherwise before, its holder must learn that.
pub(crate) fn ended(outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Outcome::Refused(refusal) => Err(refusal.into()),
        _ => Ok(()),
    }
}
