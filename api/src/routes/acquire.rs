use std::sync::Arc;

use axum::http::StatusCode;
use ringfence_service::Acquired;
use ringfence_wire::{AcquireRequest, BatchBody, LeaseId, MirroredGrant};
use tokio::time::Instant;

use crate::door::{Answer, Door, Request, Visit};
use crate::problems::Failed;
use crate::request::query::Query;
use crate::request::{body, path};
use crate::response::json;

/// `PUT /v1/leases/{lease_id}`
pub(crate) async fn put(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let lease_id = path::lease_id(request.uri())?;
    acquire(door, visit, lease_id, request).await
}

/// `POST /v1/leases`
pub(crate) async fn post(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    acquire(door, visit, LeaseId::random(), request).await
}

async fn acquire(door: &Door, visit: &mut Visit<'_>, lease_id: LeaseId, request: Request) -> Answer {
    let began = Instant::now();
    let connection = Arc::clone(request.body().connection());
    let request = read(visit, request).await.map_err(|failed| failed.of_lease(lease_id))?;
    let rests = || connection.rests();
    let attempt = door.service.acquire(visit.caller(), lease_id, request, began, rests).await;
    // From here on, nothing is awaited before the response.
    let (acquired, waited) = attempt.answered();
    visit.waited(waited);
    match acquired.map(of_acquired) {
        Ok((status, body)) => Ok(json(status, &body)),
        Err(failure) => Err(Failed::from(failure).of_lease(lease_id)),
    }
}

async fn read(visit: &mut Visit<'_>, request: Request) -> Result<AcquireRequest, Failed> {
    Query::none(request.uri())?;
    body::read(visit, request, AcquireRequest::check).await
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
