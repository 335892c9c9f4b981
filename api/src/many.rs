//! Many renewals or operations in one request. They stand in one log entry, so either all have outcomes or none has: a
//! request without outcomes fails as a whole, with 503 or 504.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use futures_util::future::join_all;
use ringfence_lease::{Acquire, Command, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{
    BatchAcquire, BatchAnswer, BatchBody, BatchRequest, BatchResult, Grant, LeaseId, MirroredGrant,
    Operation, RenewManyRequest, Wait,
};

use crate::door::{Answer, Door, json};
use crate::leases::{released, renewed};
use crate::problems::Failed;
use crate::query::Query;
use crate::take_back::TakeBack;
use crate::{body, measure};

/// `POST /v1/renew`
pub(crate) async fn renew(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let wish = body::read(request, RenewManyRequest::check).await?;
    run(
        &door,
        wish.lease_ids.into_iter().map(|lease_id| (Command::Renew { lease_id, ttl: None }, Kind::Renew)),
    )
    .await
}

/// `POST /v1/batch`
pub(crate) async fn batch(door: Arc<Door>, request: Request) -> Answer {
    Query::none(request.uri())?;
    let wish = body::read(request, BatchRequest::check).await?;
    run(&door, wish.operations.into_iter().map(|operation| command(&door, operation))).await
}

/// What an outcome is the outcome of.
enum Kind {
    Acquire(LeaseId),
    Renew,
    Release,
}

fn command(door: &Door, operation: Operation) -> (Command, Kind) {
    match operation {
        Operation::Acquire(wish) => {
            let lease_id = wish.lease_id;
            (Command::Acquire(Box::new(once(door, wish))), Kind::Acquire(lease_id))
        }
        Operation::Renew(wish) => (Command::Renew { lease_id: wish.lease_id, ttl: wish.ttl_ms }, Kind::Renew),
        Operation::Release(wish) => (Command::Release { lease_id: wish.lease_id }, Kind::Release),
    }
}

/// An acquire that does not wait for its turn.
fn once(door: &Door, wish: BatchAcquire) -> Acquire {
    Acquire {
        lease_id: wish.lease_id,
        claims: wish.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
        ttl: wish.ttl_ms,
        wait: Wait::default(),
        keep_place: wish.keep_place,
        holder: wish.holder,
        metadata: wish.metadata,
        attachment: door.attachment(),
    }
}

async fn run(door: &Door, commands: impl Iterator<Item = (Command, Kind)>) -> Answer {
    let (commands, kinds): (Vec<_>, Vec<_>) = commands.unzip();
    let acquires = commands.iter().filter_map(|command| match command {
        Command::Acquire(acquire) => Some((acquire.lease_id, acquire.attachment)),
        _ => None,
    });
    let unless_answered = TakeBack::unless_answered(&door.handle, acquires.collect());
    let outcomes = if commands.is_empty() { Ok(Vec::new()) } else { door.handle.propose(commands).await };
    let mirrored = match &outcomes {
        Ok(outcomes) => mirrored(door, &kinds, outcomes).await,
        Err(_) => None,
    };
    unless_answered.answered();
    let outcomes = outcomes.map_err(|unanswered| {
        let failed = Failed::from(unanswered);
        kinds.iter().for_each(|kind| kind.failed(&failed));
        failed
    })?;
    let results =
        kinds.into_iter().zip(outcomes).map(|(kind, outcome)| kind.result(outcome, mirrored)).collect();
    Ok(json(StatusCode::OK, &BatchAnswer { results }))
}

/// Whether all grants of a batch stand in the mirror; `None` where grants do not wait for that. New ones are looked up
/// together: one entry of the log made them, and no view shows only some of them. Older ones may long stand there, each
/// at a revision of its own.
async fn mirrored(door: &Door, kinds: &[Kind], outcomes: &[Outcome]) -> Option<bool> {
    let grants = kinds.iter().zip(outcomes).filter_map(|(kind, outcome)| match (kind, outcome) {
        (Kind::Acquire(_), Outcome::Granted(grant)) => Some((true, &**grant)),
        (Kind::Acquire(_), Outcome::Standing(grant)) => Some((false, &**grant)),
        _ => None,
    });
    let (new, older): (Vec<_>, Vec<_>) = grants.partition(|(is_new, _)| *is_new);
    if !door.mirrored(new.into_iter().map(|(_, grant)| grant)).await? {
        return Some(false);
    }
    let older = join_all(older.into_iter().map(|(_, grant)| door.mirrored(std::iter::once(grant)))).await;
    Some(older.into_iter().all(|mirrored| mirrored == Some(true)))
}

impl Kind {
    /// Counts that the operation failed with all others.
    fn failed(&self, failed: &Failed) {
        match self {
            Self::Acquire(_) => measure::acquired(Err(failed)),
            Self::Renew => measure::renewed(Some(failed)),
            Self::Release => {}
        }
    }

    /// What the operation would have been answered on its own.
    fn result(self, outcome: Outcome, mirrored: Option<bool>) -> BatchResult {
        match self {
            Self::Acquire(lease_id) => {
                let tried = tried(outcome, mirrored).map_err(|failed| failed.of_lease(lease_id));
                measure::acquired(tried.as_ref().map(|(status, _)| *status));
                tried.map_or_else(problem, |(status, body)| done(status, body))
            }
            Self::Renew => {
                let renewed = renewed(outcome);
                measure::renewed(renewed.as_ref().err());
                renewed.map_or_else(problem, |grant| done(StatusCode::OK, BatchBody::Grant(grant)))
            }
            Self::Release => {
                measure::released();
                released(outcome)
                    .map_or_else(problem, |status| BatchResult { status: status.as_u16(), body: None })
            }
        }
    }
}

fn tried(outcome: Outcome, mirrored: Option<bool>) -> Result<(StatusCode, BatchBody), Failed> {
    let granted = |grant: Box<Grant>| match mirrored {
        Some(mirrored) => BatchBody::Mirrored(Box::new(MirroredGrant { grant: *grant, mirrored })),
        None => BatchBody::Grant(grant),
    };
    match outcome {
        Outcome::Granted(grant) => Ok((StatusCode::CREATED, granted(grant))),
        Outcome::Standing(grant) => Ok((StatusCode::OK, granted(grant))),
        Outcome::Waiting(place) | Outcome::Kept(place) => {
            Ok((StatusCode::ACCEPTED, BatchBody::Waiting(place)))
        }
        Outcome::Refused(refusal) => Err(refusal.into()),
        // No table answers an acquire so.
        Outcome::Done => Err(Unanswered::Indeterminate.into()),
    }
}

fn done(status: StatusCode, body: BatchBody) -> BatchResult {
    BatchResult { status: status.as_u16(), body: Some(body) }
}

fn problem(failed: Failed) -> BatchResult {
    let problem = failed.into_problem();
    BatchResult { status: problem.status, body: Some(BatchBody::Problem(problem)) }
}
