use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_service::LeaseState;
use ringfence_wire::RenewRequest;

use crate::door::{Answer, Door, Request, Visit};
use crate::request::query::Query;
use crate::request::{body, path};
use crate::response::json;

/// `POST /v1/leases/{lease_id}/renew`
pub(crate) async fn renew(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    let RenewRequest { ttl_ms } = body::read(visit, request, |_| Ok(())).await?;
    let grant = door.service.renew(visit.caller(), lease_id, ttl_ms).await?;
    Ok(json(StatusCode::OK, &grant))
}

/// `GET /v1/leases/{lease_id}`
pub(crate) async fn get(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    let consistency = Query::consistency_only(request.uri())?;
    Ok(match door.service.lease(visit.caller(), lease_id, consistency).await? {
        LeaseState::Granted(grant) => json(StatusCode::OK, &grant),
        LeaseState::Waiting(waiting) => json(StatusCode::OK, &waiting),
    })
}

/// `DELETE /v1/leases/{lease_id}`
pub(crate) async fn delete(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    Query::none(request.uri())?;
    door.service.release(visit.caller(), lease_id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
