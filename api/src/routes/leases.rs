use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_service::{Caller, LeaseState};
use ringfence_wire::RenewRequest;

use crate::door::{Answer, Door, Request};
use crate::request::query::Query;
use crate::request::{body, path};
use crate::response::json;

/// `POST /v1/leases/{lease_id}/renew`
pub(crate) async fn renew(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let RenewRequest { ttl_ms } = body::read(door, caller, request, |_| Ok(())).await?;
    let grant = door.service.renew(caller, lease_id, ttl_ms).await?;
    Ok(json(StatusCode::OK, &grant))
}

/// `GET /v1/leases/{lease_id}`
pub(crate) async fn get(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let consistency = Query::consistency_only(request.uri())?;
    Ok(match door.service.lease(caller, lease_id, consistency).await? {
        LeaseState::Granted(grant) => json(StatusCode::OK, &grant),
        LeaseState::Waiting(waiting) => json(StatusCode::OK, &waiting),
    })
}

/// `DELETE /v1/leases/{lease_id}`
pub(crate) async fn delete(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    door.service.release(caller, lease_id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
