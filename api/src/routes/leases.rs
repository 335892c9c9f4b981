use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_lease::{Command, LeaseState, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{AcquireRequest, Grant, LeaseId, MirroredGrant, RenewRequest};
use tokio::time::Instant;

use crate::door::{Answer, Door, Request, json};
use crate::measure;
use crate::problems::Failed;
use crate::request::body;
use crate::request::path;
use crate::request::query::Query;
use crate::request_log::Waited;
use crate::routes::acquire::{Acquired, Acquisition, acquire};

/// `PUT /v1/leases/{lease_id}`
pub(crate) async fn put(door: Arc<Door>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let mut waited = Duration::ZERO;
    let answer = answer_acquire(&door, lease_id, request, &mut waited).await;
    having_waited(waited, answer.map_err(|failed| failed.of_lease(lease_id)))
}

/// `POST /v1/leases`
pub(crate) async fn post(door: Arc<Door>, request: Request) -> Answer {
    let lease_id = LeaseId::random();
    let mut waited = Duration::ZERO;
    let answer = answer_acquire(&door, lease_id, request, &mut waited).await;
    having_waited(waited, answer.map_err(|failed| failed.of_lease(lease_id)))
}

/// The answer of an acquire, with how long it waited.
fn having_waited(waited: Duration, answer: Answer) -> Answer {
    if waited.is_zero() {
        return answer;
    }
    let mut response = answer.unwrap_or_else(IntoResponse::into_response);
    response.extensions_mut().insert(Waited(waited));
    Ok(response)
}

async fn answer_acquire(door: &Door, lease_id: LeaseId, request: Request, waited: &mut Duration) -> Answer {
    let began = Instant::now();
    Query::none(request.uri())?;
    let wish = body::read(request, AcquireRequest::check).await?;
    let acquired = acquire(door, lease_id, wish, began, waited).await;
    measure::acquired(acquired.as_ref().map(|acquisition| acquisition.acquired.status()));
    let Acquisition { acquired, mirrored } = acquired?;
    let status = acquired.status();
    Ok(match (acquired, mirrored) {
        (Acquired::Waiting(waiting), _) => json(status, &waiting),
        (Acquired::Granted(grant) | Acquired::Standing(grant), None) => json(status, &grant),
        (Acquired::Granted(grant) | Acquired::Standing(grant), Some(mirrored)) => {
            json(status, &MirroredGrant { grant: *grant, mirrored })
        }
    })
}

/// `POST /v1/leases/{lease_id}/renew`
pub(crate) async fn renew(door: Arc<Door>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let wish: RenewRequest = body::read(request, |_| Ok(())).await?;
    let renewed = match door.propose(Command::Renew { lease_id, ttl: wish.ttl_ms }).await {
        Ok(outcome) => renewed(outcome),
        Err(unanswered) => Err(unanswered.into()),
    };
    measure::renewed(renewed.as_ref().err());
    Ok(json(StatusCode::OK, &renewed?))
}

/// What the outcome of a renewal says.
pub(crate) fn renewed(outcome: Outcome) -> Result<Box<Grant>, Failed> {
    match outcome {
        Outcome::Standing(grant) => Ok(grant),
        Outcome::Refused(refusal) => Err(refusal.into()),
        // No table answers a renewal so.
        Outcome::Granted(_) | Outcome::Waiting(_) | Outcome::Kept(_) | Outcome::Done => {
            Err(Unanswered::Indeterminate.into())
        }
    }
}

/// `GET /v1/leases/{lease_id}`
pub(crate) async fn get(door: Arc<Door>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let consistency = Query::consistency_only(request.uri())?;
    let now_ms = door.now_ms(consistency).await?;
    Ok(match door.handle.view(|table| table.lease(lease_id, now_ms))? {
        LeaseState::Granted(grant) => json(StatusCode::OK, &grant),
        LeaseState::Waiting(waiting) => json(StatusCode::OK, &waiting),
    })
}

/// `DELETE /v1/leases/{lease_id}`
pub(crate) async fn delete(door: Arc<Door>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let outcome = door.propose(Command::Release { lease_id }).await?;
    measure::released();
    released(outcome).map(IntoResponse::into_response)
}

/// What the outcome of a release says. Of a lease that had ended otherwise its holder must learn that.
pub(crate) fn released(outcome: Outcome) -> Result<StatusCode, Failed> {
    match outcome {
        Outcome::Refused(refusal) => Err(refusal.into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
