use axum::http::StatusCode;
use ringfence_wire::{ValidateRequest, VerdictsAnswer};

use crate::door::{Answer, Door, Request, Visit};
use crate::request::body;
use crate::request::query::Query;
use crate::response::json;

/// `POST /v1/validate`
pub(crate) async fn post(door: &Door, visit: &mut Visit<'_>, request: Request) -> Answer {
    let consistency = Query::consistency_only(request.uri())?;
    let request: ValidateRequest = body::read(visit, request, |_| Ok(())).await?;
    let (checks, single) = request.checks()?;
    let results = door.service.validate(visit.caller(), &checks, consistency).await?;
    Ok(match results.as_slice() {
        [verdict] if single => json(StatusCode::OK, verdict),
        _ => json(StatusCode::OK, &VerdictsAnswer { results }),
    })
}
