use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_lease::{Command, LeaseState};
use ringfence_wire::{AcquireRequest, LeaseId, RenewRequest};
use tokio::time::Instant;

use super::acquire::acquire;
use super::outcome;
use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::request_log::Waited;
use crate::response::json;

/// `PUT /v1/leases/{lease_id}`
pub(crate) async fn put(door: &Door, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    answer_acquire(door, lease_id, request).await
}

/// `POST /v1/leases`
pub(crate) async fn post(door: &Door, request: Request) -> Answer {
    answer_acquire(door, LeaseId::random(), request).await
}

async fn answer_acquire(door: &Door, lease_id: LeaseId, request: Request) -> Answer {
    let mut waited = Duration::ZERO;
    let answer = try_acquire(door, lease_id, request, &mut waited).await;
    let mut response = answer.unwrap_or_else(|failed| failed.of_lease(lease_id).into_response());
    if !waited.is_zero() {
        response.extensions_mut().insert(Waited(waited));
    }
    Ok(response)
}

async fn try_acquire(door: &Door, lease_id: LeaseId, request: Request, waited: &mut Duration) -> Answer {
    let began = Instant::now();
    Query::none(request.uri())?;
    let request = body::read(request, AcquireRequest::check).await?;
    let acquired = acquire(door, lease_id, request, began, waited).await;
    measure::acquired(acquired.as_ref().map(|(status, _)| *status));
    let (status, body) = acquired?;
    Ok(json(status, &body))
}

/// `POST /v1/leases/{lease_id}/renew`
pub(crate) async fn renew(door: &Door, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let RenewRequest { ttl_ms } = body::read(request, |_| Ok(())).await?;
    let outcome = door.propose(Command::Renew { lease_id, ttl: ttl_ms }).await;
    let renewed = outcome.map_err(Failed::from).and_then(outcome::renewed);
    measure::renewed(renewed.as_ref().err());
    Ok(json(StatusCode::OK, &renewed?))
}

/// `GET /v1/leases/{lease_id}`
pub(crate) async fn get(door: &Door, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let now_ms = door.now_ms(Query::consistency_only(request.uri())?).await?;
    Ok(match door.handle.view(|table| table.lease(lease_id, now_ms))? {
        LeaseState::Granted(grant) => json(StatusCode::OK, &grant),
        LeaseState::Waiting(waiting) => json(StatusCode::OK, &waiting),
    })
}

/// `DELETE /v1/leases/{lease_id}`
pub(crate) async fn delete(door: &Door, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let outcome = door.propose(Command::Release { lease_id }).await?;
    measure::released();
    outcome::ended(outcome).map(IntoResponse::into_response)
}
