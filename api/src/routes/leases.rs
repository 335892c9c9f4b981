use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_lease::{Command, LeaseState};
use ringfence_wire::RenewRequest;

use super::outcome;
use crate::door::access::Caller;
use crate::door::{Answer, Door, Request};
use crate::measure;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::response::json;

/// `POST /v1/leases/{lease_id}/renew`
pub(crate) async fn renew(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let RenewRequest { ttl_ms } = body::read(door, caller, request, |_| Ok(())).await?;
    let outcome = door.propose(caller, Command::Renew { lease_id, ttl: ttl_ms }).await;
    let renewed = outcome.and_then(outcome::renewed);
    measure::renewed(renewed.as_ref().err());
    Ok(json(StatusCode::OK, &renewed?))
}

/// `GET /v1/leases/{lease_id}`
pub(crate) async fn get(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let consistency = Query::consistency_only(request.uri())?;
    Ok(match caller.lease(door, lease_id, consistency).await? {
        LeaseState::Granted(grant) => json(StatusCode::OK, &grant),
        LeaseState::Waiting(waiting) => json(StatusCode::OK, &waiting),
    })
}

/// `DELETE /v1/leases/{lease_id}`
pub(crate) async fn delete(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let outcome = door.propose(caller, Command::Release { lease_id }).await?;
    measure::released();
    outcome::ended(outcome).map(IntoResponse::into_response)
}
