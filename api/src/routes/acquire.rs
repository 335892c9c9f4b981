use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use ringfence_service::{Acquired, Caller};
use ringfence_wire::{AcquireRequest, BatchBody, LeaseId, MirroredGrant};
use tokio::time::Instant;

use crate::door::{Answer, Door, Request};
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::request_log::Waited;
use crate::response::json;

/// `PUT /v1/leases/{lease_id}`
pub(crate) async fn put(door: &Door, caller: &Caller, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    acquire(door, caller, lease_id, request).await
}

/// `POST /v1/leases`
pub(crate) async fn post(door: &Door, caller: &Caller, request: Request) -> Answer {
    acquire(door, caller, LeaseId::random(), request).await
}

async fn acquire(door: &Door, caller: &Caller, lease_id: LeaseId, request: Request) -> Answer {
    let began = Instant::now();
    let connection = Arc::clone(request.body().connection());
    let request = read(door, caller, request).await.map_err(|failed| failed.of_lease(lease_id))?;
    let waits = || {
        connection.takes_little();
        connection.lasts();
    };
    let attempt = door.service.acquire(caller, lease_id, request, began, waits).await;
    // From here on, nothing is awaited before the response.
    let (acquired, waited) = attempt.answered();
    let mut response = match acquired.map(of_acquired) {
        Ok((status, body)) => json(status, &body),
        Err(failure) => Failed::from(failure).of_lease(lease_id).into_response(),
    };
    if !waited.is_zero() {
        response.extensions_mut().insert(Waited(waited));
    }
    Ok(response)
}

async fn read(door: &Door, caller: &Caller, request: Request) -> Result<AcquireRequest, Failed> {
    Query::none(request.uri())?;
    body::read(door, caller, request, AcquireRequest::check).await
}

/// The status and the body of the response to an acquire.
pub(crate) fn of_acquired(acquired: Acquired) -> (StatusCode, BatchBody) {
    match acquired {
        Acquired::Granted { grant, standing, mirrored } => {
            let body = match mirrored {
                Some(mirrored) => BatchBody::Mirrored(Box::new(MirroredGrant { grant: *grant, mirrored })),
                None => BatchBody::Grant(grant),
            };
            (if standing { StatusCode::OK } else { StatusCode::CREATED }, body)
        }
        Acquired::Waiting(place) => (StatusCode::ACCEPTED, BatchBody::Waiting(place)),
    }
}
